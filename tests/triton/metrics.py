"""The page /metrics of a running server, and the copy of it on Triton's metrics port."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from openai_bls.launcher.testing import RunningServer
from tests.waiting import until

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


Series = dict[tuple[str, str, str], float]


def on_v1(server: RunningServer) -> Series:
    """Type, name and labels → value, on /v1's page."""
    return _series(server.openai_url.removesuffix("/v1") + "/metrics")


def on_triton(server: RunningServer) -> Series:
    """The same of `openai_bls` on Triton's."""
    return _series(server.metrics_url)


def wait_until_told(server: RunningServer, expected: Callable[[], Series]) -> None:
    """Triton's port gets what has changed once a second."""
    until(lambda: on_triton(server) == pytest.approx(expected()))


def _series(url: str) -> Series:
    found = {}
    for family in text_string_to_metric_families(httpx.get(url, timeout=60).text):
        if family.name.startswith(("openai_bls_", "nv_trt_llm_")):
            # On Triton's port a histogram is shown as counters.
            kind = "counter" if family.type == "histogram" else family.type
            for sample in family.samples:
                # 1 and 1.0
                labels = {key: float(text) if key == "le" else text for key, text in sample.labels.items()}
                # The parser names every counter so.
                name = sample.name.removesuffix("_total")
                found[kind, name, str(sorted(labels.items()))] = sample.value
    return found
