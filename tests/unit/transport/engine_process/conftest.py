"""Pace of restarts in tests."""

from __future__ import annotations

import pytest

from openai_bls.transport.engine_process import supervision


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "FIRST_DELAY_S", 0.001)
    monkeypatch.setattr(supervision, "LONGEST_DELAY_S", 0.01)
