"""Engines to test, closed and checked after each test."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from openai_bls.core.engine import Engine
from openai_bls.core.manifest import Manifest, write_manifest
from openai_bls.engines.registry import create_engine
from tests.engine_contract.support import MAX_MODEL_LEN, Recorder, make_checkpoint

EngineFactory = Callable[..., tuple[Engine, Recorder]]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face directory; not to be changed."""
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny-qwen"
    make_checkpoint(folder)
    return folder


@pytest.fixture(scope="session")
def version_dir(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a null engine; not to be changed. An engine's own tests have theirs of this name."""
    return write_engine(tmp_path_factory.mktemp("engine"), checkpoint, "null")


def write_engine(folder: Path, checkpoint: Path, engine: str) -> Path:
    """The version folder, below `folder`, of an engine of `checkpoint`, without its record."""
    version_dir = folder / "tensorrt_llm" / "1"
    shutil.copytree(checkpoint, version_dir / "checkpoint")
    manifest = Manifest(
        engine=engine, model_name="tiny-qwen", max_model_len=MAX_MODEL_LEN, max_batch_size=16, created=1
    )
    write_manifest(version_dir, manifest)
    return version_dir


@pytest.fixture
def folder(version_dir: Path, tmp_path: Path) -> Path:
    """A copy of that engine, to be spoilt."""
    return Path(shutil.copytree(version_dir, tmp_path / "tensorrt_llm" / "1"))


@pytest.fixture
def start(version_dir: Path) -> Iterator[EngineFactory]:
    """Start an engine with overrides: `engine, recorder = start(engine="null")`; in `folder`, if that is given."""
    started: list[tuple[Engine, Recorder]] = []

    def start_one(folder: Path = version_dir, **overrides: str) -> tuple[Engine, Recorder]:
        recorder = Recorder()
        engine = create_engine(folder, recorder, {"num_threads": "1"} | overrides)
        started.append((engine, recorder))
        return engine, recorder

    yield start_one
    for engine, recorder in started:
        engine.close()
        assert recorder.breaches == []
