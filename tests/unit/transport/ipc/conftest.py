"""Pace of the exchange's retries in tests."""

from __future__ import annotations

import pytest

from openai_bls.transport.ipc import link, listener


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_RETRY_S", 0.005)
    monkeypatch.setattr(listener, "_RETRY_S", 0.005)
