"""What gateways see of a real server that is full: what waits, the adapters at work, the load in an answer's head."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from openai_bls.launcher.testing import RunningServer, run_server
from tests.triton.conftest import with_two_instances

pytestmark = pytest.mark.triton

WAIT_S = 60.0
# One runs, and one is sent ahead.
BATCH = 1
STREAMS = 8
LONG: dict[str, Any] = {
    "model": "demo",
    "prompt": "Machine learning is",
    "max_tokens": 1500,
    "ignore_eos": True,
    "stream": True,
}
WAITS = (
    ("openai_bls_requests_waiting", {"model": "demo"}),
    ("nv_trt_llm_request_metrics", {"model": "demo", "request_type": "waiting"}),
    ("vllm:num_requests_waiting", {"model_name": "demo"}),
)


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Two instances of `openai_bls`, whose counts gateways see as one, and an engine that takes its time."""
    env = {
        "OPENAI_BLS_GATEWAY_METRICS": "both",
        "OPENAI_BLS_ENGINE": "null",
        "OPENAI_BLS_ENGINE_MAX_BATCH_SIZE": str(BATCH),
        "OPENAI_BLS_ENGINE_NULL_LORA_NAMES": "poet",
        "OPENAI_BLS_ENGINE_NULL_STEP_DELAY_MS": "20",
    }
    with run_server(with_two_instances(repository, tmp_path_factory.mktemp("gateways")), env=env) as running:
        yield running


class Page:
    """The metrics of one port."""

    def __init__(self, url: str) -> None:
        text = httpx.get(url, timeout=60).text
        self.samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def value(self, name: str, labels: dict[str, str]) -> float:
        """Value of a gauge; -1 if it is not there yet."""
        values = [s.value for s in self.samples if s.name == name and labels.items() <= s.labels.items()]
        assert len(values) <= 1
        return values[0] if values else -1.0

    @property
    def waiting(self) -> list[float]:
        return [self.value(name, labels) for name, labels in WAITS]

    @property
    def adapters(self) -> tuple[str, str]:
        """Running and waiting ones."""
        [labels] = [sample.labels for sample in self.samples if sample.name == "vllm:lora_requests_info"]
        return labels["running_lora_adapters"], labels["waiting_lora_adapters"]


def ports(server: RunningServer) -> tuple[str, str]:
    """The metrics on /v1's port and on Triton's."""
    return server.openai_url.removesuffix("/v1") + "/metrics", server.metrics_url


def until(url: str, condition: Callable[[Page], bool]) -> None:
    """Until a page shows it."""
    deadline = time.monotonic() + WAIT_S
    while not condition(page := Page(url)):
        assert time.monotonic() < deadline, (url, page.waiting)
        threading.Event().wait(0.05)


class Stream:
    """A stream on a connection of its own, which ends with its next event once it is to leave."""

    def __init__(self, server: RunningServer, **changes: Any) -> None:
        self._url = f"{server.openai_url}/completions"
        self._body = {**LONG, **changes}
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def leave(self) -> None:
        self._leave.set()

    def wait(self) -> None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with httpx.stream("POST", self._url, json=self._body, timeout=WAIT_S) as response:
            for _ in response.iter_lines():
                if self._leave.is_set():
                    return


def test_what_waits_is_seen_and_falls_again(server: RunningServer) -> None:
    streams = [Stream(server) for _ in range(STREAMS)] + [Stream(server, model="poet")]
    try:
        # The last one waits, unless it came first.
        for url in ports(server):
            until(url, lambda page: min(page.waiting) == max(page.waiting) >= STREAMS + 1 - BATCH)
        until(ports(server)[0], lambda page: "poet" in page.adapters)
    finally:
        for stream in streams:
            stream.leave()
        # Each that leaves lets one that waits have an event.
        for stream in streams:
            stream.wait()
    for url in ports(server):
        until(url, lambda page: min(page.waiting) == max(page.waiting) == 0)
    until(ports(server)[0], lambda page: page.adapters == ("", ""))


@pytest.mark.parametrize("stream", [False, True])
def test_the_load_in_the_head_of_an_answer(server: RunningServer, stream: bool) -> None:
    body = {**LONG, "max_tokens": 2, "stream": stream}
    headers = {"endpoint-load-metrics-format": "json"}
    answer = httpx.post(f"{server.openai_url}/completions", json=body, headers=headers, timeout=WAIT_S)
    assert answer.status_code == 200
    kind, _, report = answer.headers["endpoint-load-metrics"].partition(" ")
    metrics = json.loads(report)["named_metrics"]
    assert kind == "JSON"
    assert metrics["max_token_capacity"] > 0
    assert 0 <= metrics["kv_cache_utilization"] == metrics["kv_cache_usage_perc"] <= 1
    assert metrics["num_requests_waiting"] >= 0
    assert "endpoint-load-metrics" not in httpx.post(answer.url, json=body, timeout=WAIT_S).headers
