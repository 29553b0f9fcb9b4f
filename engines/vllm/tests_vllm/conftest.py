"""Fixtures that the server's tests share with the engines'."""

from __future__ import annotations

from tests.engine_contract.fixtures import checkpoint, folder, start, version_dir
from tests.unit.builder.conftest import repository, source
from tests.unit.conftest import anyio_backend, tokenizer_dir

__all__ = ["anyio_backend", "checkpoint", "folder", "repository", "source", "start", "tokenizer_dir", "version_dir"]
