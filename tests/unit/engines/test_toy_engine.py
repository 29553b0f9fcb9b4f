"""CONTRIBUTING's recipe "an engine": a distribution in a folder that the server knows nothing of.

tests/toy_engine has its files. It is built, passes the contract of engines, and runs in a process of its own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from openai_bls.core.manifest import EngineLoadError, load_manifest
from openai_bls.engines import registry
from openai_bls.engines.registry import create_engine
from tests.engine_contract.conformance import EngineContract, Started
from tests.engine_contract.support import MAX_MODEL_LEN, Recorder, SharedProcess
from tests.paths import ROOT
from tests.unit.builder.builds import build_main
from tests.unit.builder.repositories import make_repository

TOY = ROOT / "tests" / "toy_engine"


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The distribution as pip leaves it in a folder of the path: the package, and a record with the entry points."""
    site = tmp_path_factory.mktemp("site")
    (site / "openai_bls_toy").symlink_to(TOY / "openai_bls_toy")
    text = (TOY / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'^\[project\.entry-points\."(.+)"\]\n(\w+) = "(.+)"$', text, re.MULTILINE)
    assert found is not None
    record = site / "openai_bls_toy-1.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: openai_bls_toy\nVersion: 1\n")
    (record / "entry_points.txt").write_text(f"[{found[1]}]\n{found[2]} = {found[3]}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        registry._entries.cache_clear()
        registry.plugin.cache_clear()
        yield site
    registry._entries.cache_clear()
    registry.plugin.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "openai_bls_toy"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def built(toy: Path, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The version folder of an engine that the command line has built."""
    repository = make_repository(tmp_path_factory.mktemp("toy") / "model_repository")
    words = ["--engine", "toy", "--model", str(checkpoint), "--model-repository", str(repository)]
    assert build_main([*words, "--max-batch-size", "16", "--max-seq-len", str(MAX_MODEL_LEN)]) == 0
    return repository / "tensorrt_llm" / "1"


def test_the_build_names_it(built: Path) -> None:
    manifest = load_manifest(built)
    assert (manifest.engine, manifest.model_name, manifest.max_batch_size) == ("toy", "tiny-qwen", 16)


def test_its_options_are_checked(built: Path) -> None:
    with pytest.raises(EngineLoadError, match="toy_step_ms"):
        create_engine(built, Recorder(), {"toy_step_ms": "soon"})


def test_no_file_of_the_server_or_of_another_engine_names_it() -> None:
    folders = (ROOT / "openai_bls", *ROOT.glob("engines/*/openai_bls_*"))
    files = [path for folder in folders for path in folder.rglob("*.py")]
    assert files
    naming = {
        path.relative_to(ROOT).as_posix() for path in files if "openai_bls_toy" in path.read_text(encoding="utf-8")
    }
    # Its docstring has such a table as an example.
    assert naming <= {"openai_bls/engines/plugin.py"}


class TestEngine(EngineContract):
    @pytest.fixture
    def started(self, built: Path) -> Iterator[Started]:
        recorder = Recorder()
        engine = create_engine(built, recorder)
        yield engine, recorder
        engine.close()
        assert recorder.breaches == []


@pytest.fixture(scope="module")
def process(built: Path) -> Iterator[SharedProcess]:
    shared = SharedProcess(built)
    yield shared
    shared.close()


class TestEngineInAProcess(EngineContract):
    @pytest.fixture
    def started(self, process: SharedProcess) -> Iterator[Started]:
        with process.started() as found:
            yield found
