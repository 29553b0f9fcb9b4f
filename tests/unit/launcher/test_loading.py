"""Flags with which models load side by side."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from openai_bls.launcher.checks import models_by_engine
from openai_bls.launcher.logs import LoadWatcher
from openai_bls.launcher.tritonserver.loading import failure_flags, load_flags

ROOT = Path(__file__).resolve().parents[3]

OURS = [path for path in (ROOT / "model_repository").iterdir() if path.is_dir()]
COMPLETE = "--disable-auto-complete-config"


def test_our_models_load_at_once_and_as_configured() -> None:
    assert len(OURS) == 6
    assert load_flags(OURS, []) == ["--model-load-thread-count=6", COMPLETE]
    assert load_flags(OURS[:4], []) == [COMPLETE]
    own = ["--model-load-thread-count=2", "--disable-auto-complete-config"]
    assert load_flags(OURS, own) == []


def test_a_server_of_several_engines_stays_if_one_fails() -> None:
    names = [path.name for path in OURS]
    (default,) = models_by_engine(names)
    assert sorted([*default, "openai_bls"]) == sorted(names)
    assert failure_flags([default], []) == []
    optional = models_by_engine([*names, "tensorrt_llm_a", "preprocessing_a", "tensorrt_llm_alone"])
    assert optional == [default, ["tensorrt_llm_a", "preprocessing_a"]]
    stays = ["--exit-on-error=false", "--strict-readiness=false"]
    assert failure_flags(optional, []) == stays
    assert failure_flags(optional, ["--strict-readiness=true"]) == stays[:1]
    assert failure_flags(optional, ["--exit-on-error", "true"]) == []


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("1/model.py", "class TritonPythonModel:", "class TritonPythonModel(Base):"),
        ("1/model.py", "class TritonPythonModel:", "def auto_complete_config(): ...\nclass TritonPythonModel:"),
        ("config.pbtxt", "input [", "inputs ["),
        ("config.pbtxt", 'backend: "python"', 'backend: "onnxruntime"'),
        ("config.pbtxt", "name:", "{"),
    ],
)
def test_a_model_that_may_complete_its_configuration(tmp_path: Path, name: str, old: str, new: str) -> None:
    model = shutil.copytree(ROOT / "model_repository" / "postprocessing", tmp_path / "postprocessing")
    assert load_flags([model], []) == [COMPLETE]
    path = model / name
    path.write_text(path.read_text().replace(old, new, 1))
    assert load_flags([model], []) == []
    path.unlink()
    assert load_flags([model], []) == ([] if name == "config.pbtxt" else [COMPLETE])


def test_an_engine_that_waits_is_news() -> None:
    said = "tensorrt_llm_b waits for tensorrt_llm and tensorrt_llm_a to load: it takes up to 3.0 GiB"
    assert LoadWatcher().feed(f'I1126 10:45:42.347507 21583 model.py:12] "{said}"') == said
    assert LoadWatcher().feed(f"a client wrote: {said}") is None
