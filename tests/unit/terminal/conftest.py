"""A small server, and no key of the user's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.terminal.support import FakeServer, fake_server


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    for name in ("OPENAI_API_KEY", "OPENAI_BLS_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with fake_server() as server:
        yield server
