"""Fixtures of the unit tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from openai_bls.engines import registry
from tests.unit import engine_doubles as doubles
from tests.unit.core_support import write_tokenizer


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny tokenizer with a ChatML template."""
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def anyio_backend() -> str:
    """The event loop of tests that are coroutines."""
    return "asyncio"


@pytest.fixture
def engine_doubles(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Doubles of engines among those that are installed; what was found before is forgotten."""
    site = tmp_path_factory.mktemp("doubles")
    doubles.install(site)
    monkeypatch.syspath_prepend(site)
    registry._entries.cache_clear()
    registry.plugin.cache_clear()
    yield
    registry._entries.cache_clear()
    registry.plugin.cache_clear()
