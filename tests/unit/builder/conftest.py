"""Fixtures of builds: a checkpoint, and the committed repository without engines."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.engine_contract.fixtures import checkpoint
from tests.unit.builder.repositories import make_repository

__all__ = ["checkpoint"]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The committed repository without any engine."""
    return make_repository(tmp_path / "model_repository")


@pytest.fixture
def source(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint, which a test may change."""
    return Path(shutil.copytree(checkpoint, tmp_path / "source" / "tiny-qwen"))
