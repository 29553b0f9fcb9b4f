"""The page /metrics of a running server."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families

from openai_bls.launcher.testing import RunningServer

Scrape = list[tuple[str, dict[str, str], float]]


def scrape(server: RunningServer) -> Scrape:
    response = httpx.get(server.openai_url.removesuffix("/v1") + "/metrics", timeout=60)
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(response.text)
    return [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]


def find(samples: Scrape, name: str, **labels: str) -> float:
    """The sum of what matches."""
    return sum(
        value
        for found, known, value in samples
        if found == f"openai_bls_{name}" and all(known.get(label) == text for label, text in labels.items())
    )
