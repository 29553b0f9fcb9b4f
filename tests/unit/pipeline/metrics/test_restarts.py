"""Restarts counted by the launcher, and shown by the metrics of a server around which it is."""

from __future__ import annotations

import pytest

from openai_bls.pipeline.metrics.restarts import SERVER, VARIABLE, RestartCounts, restart_counts
from tests.unit.core_support import Bench

pytestmark = pytest.mark.anyio


async def test_counts_reach_the_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    bench = Bench()
    assert b"restarts_total{" not in await bench.service.metrics.scrape()
    counts = RestartCounts()
    monkeypatch.setenv(VARIABLE, str(counts.path))
    assert restart_counts() == {SERVER: 0}
    counts.add("preprocessing")
    counts.add("preprocessing")
    counts.add(SERVER)
    page = (await bench.service.metrics.scrape()).decode()
    assert 'openai_bls_restarts_total{part="preprocessing"} 2.0' in page
    assert 'openai_bls_restarts_total{part="tritonserver"} 1.0' in page
    counts.close()
    assert restart_counts() == {}
    assert not list(counts.path.parent.glob(f"{counts.path.stem}*"))
