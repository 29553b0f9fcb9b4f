"""A draft model is built in beside the model, if it has the same vocabulary."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from openai_bls.core.manifest import EngineLoadError
from openai_bls.engines.registry import create_engine
from tests.unit.builder.builds import refusal, run
from tests.unit.engines.engine_support import Recorder, make_checkpoint, request


@pytest.fixture
def small(tmp_path: Path) -> Path:
    folder = tmp_path / "small"
    make_checkpoint(folder, seed=7)
    return folder


def test_it_is_built_in_and_drafts(source: Path, repository: Path, small: Path) -> None:
    folder = repository / "tensorrt_llm" / "1"
    manifest, lines = run(source, repository, draft_model=str(small), self_test=True)
    assert set(manifest.draft_files) == {"config.json", "model.safetensors"}
    assert manifest.draft_checkpoint == "draft"
    assert manifest.builder["draft_model"] == str(small)
    assert manifest.self_test is not None
    assert "draft model" in lines
    recorder = Recorder()
    engine = create_engine(folder, recorder, {"num_threads": "1"})
    engine.submit(request(1, max_tokens=20))
    recorder.wait_end(1)
    assert engine.stats().draft_tokens > 0
    engine.close()
    # Nothing has changed; then a file of it; then it is gone.
    assert "up to date" in run(source, repository, draft_model=str(small), self_test=True)[1][0]
    make_checkpoint(small, seed=8)
    untested = {"draft_model": str(small)}
    assert run(source, repository, **untested)[0].draft_files != manifest.draft_files
    (folder / "draft" / "model.safetensors").write_bytes(b"")
    with pytest.raises(EngineLoadError, match=r"the draft model: .*model.safetensors has not the size"):
        create_engine(folder, Recorder(), {"num_threads": "1"})
    assert "up to date" not in run(source, repository, **untested)[1][0]
    assert run(source, repository)[0].draft_checkpoint == ""
    assert not (folder / "draft").exists()


def test_a_further_engine_has_its_own(source: Path, repository: Path, small: Path) -> None:
    manifest, _ = run(source, repository, name="quick", draft_model=str(small))
    assert manifest.draft_files
    assert (repository / "tensorrt_llm_quick" / "1" / "draft" / "config.json").is_file()


def test_what_is_no_draft_of_the_model_is_refused(source: Path, repository: Path, small: Path, tmp_path: Path) -> None:
    tokenizer = json.loads((small / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (small / "tokenizer.json").write_text(json.dumps(tokenizer))
    said = refusal(source, repository, draft_model=str(small))
    first = min(vocabulary["a"], vocabulary["b"])
    assert f"has another vocabulary than the model: the token 'a', {first} in the model's, is {first + 1} there" in said
    shutil.copyfile(source / "tokenizer.json", small / "tokenizer.json")
    (small / "model.safetensors").write_bytes(b"")
    assert "model.safetensors" in refusal(source, repository, draft_model=str(small))
    gguf = tmp_path / "small.gguf"
    gguf.write_bytes(b"")
    assert "a draft model is a directory or a hub id" in refusal(source, repository, draft_model=str(gguf))
