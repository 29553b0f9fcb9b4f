"""Records of requests, and what metrics say of them."""

from __future__ import annotations

import asyncio
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from openai_bls.core.request_record import Outcome, RequestRecord
from openai_bls.core.usage import Usage
from openai_bls.pipeline.metrics.metrics import Metrics
from tests.unit.core_support import Bench

CHAT = {"model": "tiny", "endpoint": "chat.completions"}


def lines(text: bytes) -> dict[str, float]:
    """`name{label="value",...}`, the labels sorted → value, as Prometheus itself would read them."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        assert family.documentation
        for sample in family.samples:
            key = series(sample.name, sample.labels)
            assert key not in found
            found[key] = sample.value
    return found


def series(name: str, labels: dict[str, str]) -> str:
    pairs = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    return f"{name}{{{pairs}}}" if pairs else name


def of(metrics: Metrics) -> dict[str, float]:
    return lines(asyncio.run(metrics.scrape()))


def line(name: str, **labels: str) -> str:
    return series(f"openai_bls_{name}", labels)


def record(outcome: Outcome = "done", **changes: Any) -> RequestRecord:
    values: dict[str, Any] = {
        "endpoint": "chat.completions",
        "model": "tiny",
        "outcome": outcome,
        "finish_reasons": ["stop"] if outcome == "done" else [],
        "usage": Usage.of(10, 5, cached=4, reasoning=2),
        "began_at": 100.0,
        "first_token_at": 100.05,
        "ended_at": 102.05,
    }
    return RequestRecord(**(values | changes))


def new() -> Metrics:
    return Metrics(Bench().service)
