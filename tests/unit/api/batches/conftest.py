"""Quick runners."""

from __future__ import annotations

import pytest

from openai_bls.api.batches import runner


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "PACE", runner.Pace(0.01, 0.1, 0.0, 0.005, 0.0, (0.001, 0.002)))
