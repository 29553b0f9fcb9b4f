"""Fixtures of builds: a checkpoint, the committed repository without engines, a machine with a fake TensorRT-LLM."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.unit.builder.tensorrt_llm.build_support import Machine, make_repository
from tests.unit.engines.conftest import checkpoint

__all__ = ["checkpoint"]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The committed repository without any engine."""
    return make_repository(tmp_path / "model_repository")


@pytest.fixture
def source(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint, which a test may change."""
    return Path(shutil.copytree(checkpoint, tmp_path / "source" / "tiny-qwen"))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine with an H100 and TensorRT-LLM 1.2.1."""
    return Machine(tmp_path, monkeypatch)
