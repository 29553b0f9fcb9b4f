"""Fixtures of the unit tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.core_support import write_tokenizer


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny tokenizer with a ChatML template."""
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def anyio_backend() -> str:
    """The event loop of tests that are coroutines."""
    return "asyncio"
