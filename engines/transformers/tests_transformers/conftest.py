"""Fixtures that the server's tests share with the engines', and an embedded engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openai_bls.engines.registry import create_engine
from openai_bls_transformers.record import EmbeddedRecord
from tests.engine_contract.fixtures import checkpoint, folder, start, write_engine
from tests.engine_contract.support import Recorder, change_record
from tests.unit.builder.conftest import repository, source
from tests.unit.conftest import anyio_backend, tokenizer_dir

__all__ = ["anyio_backend", "checkpoint", "folder", "repository", "source", "start", "tokenizer_dir"]


@pytest.fixture(scope="session")
def version_dir(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an engine that has passed its self-test; not to be changed."""
    version_dir = write_engine(tmp_path_factory.mktemp("engine"), checkpoint, "transformers")
    engine: Any = create_engine(version_dir, Recorder(), {"num_threads": "1"})
    engine.close()
    change_record(version_dir, **EmbeddedRecord(self_test=engine.self_test).fields())
    return version_dir
