"""Fixtures that the server's tests share with the engines'."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine_contract.fixtures import checkpoint, folder, start, version_dir
from tests.unit.builder.conftest import repository, source
from tests.unit.conftest import anyio_backend, tokenizer_dir
from tests_tensorrt_llm.recipe.build_support import Machine

__all__ = ["anyio_backend", "checkpoint", "folder", "repository", "source", "start", "tokenizer_dir", "version_dir"]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine with an H100 and TensorRT-LLM 1.2.1."""
    return Machine(tmp_path, monkeypatch)
