"""Request log, traces, and the queries of dashboard and rules, on one real server."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml

from openai_bls.core.keys.api_keys import new_key
from openai_bls.launcher.testing import RunningServer, run_server
from tests.tools import tool
from tests.triton import triton_client
from tests.triton.conftest import ROOT
from tests.triton.operation.otlp_receiver import Receiver, Span, receiving
from tests.unit.core_support import free_port
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.triton

SECRET = "periwinkle"
PARENT_TRACE, PARENT_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{PARENT_TRACE}-{PARENT_SPAN}-01"
CHAT: dict[str, Any] = {
    "model": "openai_bls",
    "messages": [{"role": "user", "content": f"Say {SECRET}"}],
    "max_tokens": 8,
    "temperature": 0.5,
}
PHASES = ["prepare", "queue", "prefill", "decode"]


class Place:
    """The server, what it logs, and where it sends its traces."""

    def __init__(self, server: RunningServer, receiver: Receiver, key: str) -> None:
        self.server = server
        self.receiver = receiver
        self.key = key
        self.client = openai.OpenAI(base_url=server.openai_url, api_key=key, max_retries=0)

    def lines(self) -> list[dict[str, Any]]:
        text = self.server.log_path.read_text("utf-8", "replace")
        return [json.loads(line) for line in text.splitlines() if line.startswith('{"time":')]

    def line(self, request_id: str) -> dict[str, Any]:
        """The one line of a request."""
        (line,) = until(lambda: [line for line in self.lines() if line.get("request_id") == request_id])
        return dict(line)

    def span(self, line: dict[str, Any]) -> Span:
        """The span of a request, all of whose spans have come."""

        def found() -> Span | None:
            spans = [span for span in self.receiver.trace(line["trace_id"]) if span.service]
            ours = [s for s in spans if s.attributes.get("openai_bls.request_id") == line["request_id"]]
            return ours[0] if ours else None

        span: Span = until(found)
        return span

    def phases(self, span: Span) -> list[Span]:
        below = [other for other in self.receiver.trace(span.trace_id) if other.parent_id == span.span_id]
        return sorted(below, key=lambda other: (other.start_ns, PHASES.index(other.name)))


@pytest.fixture(scope="module")
def place(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("observed")
    shutil.copytree(repository, folder / "model_repository")
    shutil.copytree(ROOT / "examples" / "guard", folder / "model_repository" / "guard")
    key, line = new_key("alice")
    (folder / "keys").write_text(line)
    with receiving() as receiver:
        env = {
            "OPENAI_BLS_ENGINE": "null",
            "OPENAI_BLS_ENGINE_NULL_STEP_DELAY_MS": "5",
            "OPENAI_BLS_API_KEYS_FILE": str(folder / "keys"),
            "OPENAI_BLS_GUARD_BEFORE": "guard",
            "OPENAI_BLS_REQUEST_LOG": "json",
            "OPENAI_BLS_TRACING": "true",
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
            "OTEL_SERVICE_NAME": "llm",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        flags = [
            "--trace-config=mode=opentelemetry",
            "--trace-config=rate=1",
            "--trace-config=level=TIMESTAMPS",
            f"--trace-config=opentelemetry,url={receiver.url}/triton",
            "--trace-config=opentelemetry,bsp_schedule_delay=100",
            "--grpc-header-forward-pattern=(?i)traceparent",
        ]
        with run_server(folder / "model_repository", env=env, args=flags) as server:
            yield Place(server, receiver, key)


def test_a_request_on_v1(place: Place) -> None:
    headers = {"x-request-id": "one", "traceparent": TRACEPARENT}
    place.client.chat.completions.create(**CHAT, n=2, extra_headers=headers)
    line = place.line("one")
    assert line["total_s"] >= line["time_to_first_token_s"] >= line["queue_s"] >= 0
    expected = {
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "endpoint": "chat.completions",
        "stream": False,
        "model": "demo",
        "key": "alice",
        "generated_tokens": 16,
        "finish_reason": "length",
        "trace_id": PARENT_TRACE,
    }
    assert expected.items() <= line.items()
    span = place.span(line)
    assert (span.service, span.name, span.parent_id) == ("llm", "chat demo", PARENT_SPAN)
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "demo",
        "gen_ai.response.model": "demo",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 8,
        "gen_ai.request.choice.count": 2,
        "gen_ai.usage.input_tokens": line["prompt_tokens"],
        "gen_ai.usage.output_tokens": 16,
        "gen_ai.response.finish_reasons": ["length", "length"],
        "http.response.status_code": 200,
        "openai_bls.key": "alice",
    }
    assert attributes.items() <= span.attributes.items()
    phases = until(lambda: len(found := place.phases(span)) == 4 and found)
    assert [phase.name for phase in phases] == PHASES
    ends = [span.start_ns, *(phase.end_ns for phase in phases)]
    assert [phase.start_ns for phase in phases] == ends[:-1]
    assert ends[-1] <= span.end_ns


def test_a_stream_and_a_client_that_leaves(place: Place) -> None:
    stream = place.client.chat.completions.create(**CHAT, stream=True, extra_headers={"x-request-id": "stream"})
    assert len(list(stream)) > 1
    line = place.line("stream")
    assert (line["status"], line["stream"], line["generated_tokens"]) == (200, True, 8)
    long = {**CHAT, "max_tokens": 1500}
    left = place.client.chat.completions.create(**long, stream=True, extra_headers={"x-request-id": "left"})
    next(iter(left))
    left.response.close()
    line = place.line("left")
    assert line["status"] == 499
    assert 0 < line["generated_tokens"] < 1500


def test_requests_that_are_refused(place: Place) -> None:
    def ask(request_id: str, key: str = place.key, **changes: Any) -> None:
        headers = {"authorization": f"Bearer {key}", "x-request-id": request_id}
        httpx.post(f"{place.server.openai_url}/chat/completions", json={**CHAT, **changes}, headers=headers)

    ask("bad-key", key="sk-wrong")
    ask("bad-field", top_q=1)
    ask("bad-model", model="x\n2026-11-22T00:00:00.000Z GET /forged 200")
    ask("guarded", messages=[{"role": "user", "content": "How is napalm made?"}])
    expected = {
        "bad-key": (401, None, "invalid_api_key", None, None),
        "bad-field": (400, "alice", "unknown_parameter", "top_q", None),
        "bad-model": (404, "alice", "model_not_found", "model", "x\n2026-11-22T00:00:00.000Z GET /forged 200"),
        "guarded": (403, "alice", "blocked_word", None, None),
    }
    for request_id, told in expected.items():
        line = place.line(request_id)
        assert tuple(line.get(name) for name in ("status", "key", "error", "param", "model")) == told
        assert place.span(line).attributes["error.type"] == told[2]
    httpx.get(f"{place.server.openai_url}/nowhere")
    (line,) = until(lambda: [line for line in place.lines() if line["path"] == "/v1/nowhere"])
    assert line["status"] == 404


def test_probes_have_no_line(place: Place) -> None:
    for path in ("/health", "/health/live", "/version", "/metrics"):
        assert httpx.get(place.server.openai_url.removesuffix("/v1") + path, timeout=60).status_code == 200
    headers = {"authorization": f"Bearer {place.key}", "x-request-id": "models"}
    httpx.get(f"{place.server.openai_url}/models", headers=headers)
    assert place.line("models")["endpoint"] == "models"
    assert not [line for line in place.lines() if line["path"].startswith(("/health", "/version", "/metrics"))]


def joined(place: Place, request_id: str, model: str) -> dict[str, Any]:
    """The line of a request whose span is a child of Triton's span of the model."""
    line = place.line(request_id)
    assert (line["method"], line["path"]) == ("TRITON", model)
    span = place.span(line)
    parent = until(lambda: [s for s in place.receiver.trace(line["trace_id"]) if s.span_id == span.parent_id])[0]
    assert (parent.service, parent.name) == ("", model)
    return line


def test_requests_on_tritons_endpoints(place: Place) -> None:
    url, body = place.server.http_url, {"prompt": SECRET, "max_tokens": 4, "api_key": place.key}
    triton_client.generate(url, "openai_bls", {**body, "id": "whole"})
    assert len(list(triton_client.generate_stream(url, "openai_bls", {**body, "stream": True, "id": "streamed"}))) > 1
    with triton_client.GrpcStream(place.server.grpc_url, {"traceparent": TRACEPARENT}) as stream:
        inputs = [triton_client.infer_input("prompt", [SECRET], "BYTES")]
        stream.send("openai_bls", inputs, {"max_tokens": 4, "api_key": place.key, "stream": True}, "grpc")
        assert list(stream.responses())
    for request_id in ("whole", "streamed", "grpc"):
        line = joined(place, request_id, "openai_bls")
        assert (line["status"], line["endpoint"], line["key"], line["generated_tokens"]) == (
            200,
            "completions",
            "alice",
            4,
        )
        assert line["stream"] == (request_id != "whole")
    assert place.line("grpc")["trace_id"] == PARENT_TRACE
    for request_id, change in (("refused", {"api_key": "sk-wrong"}), ("unknown", {"foo": 1})):
        with pytest.raises(triton_client.TritonError):
            triton_client.generate(url, "openai_bls", {**body, **change, "id": request_id})
    assert joined(place, "refused", "openai_bls")["status"] == 401
    assert joined(place, "unknown", "openai_bls")["error"] == "unknown_parameter"


def test_requests_of_tensorrt_llm_bls(place: Place) -> None:
    url, body = place.server.http_url, {"text_input": SECRET, "max_tokens": 4, "api_key": place.key}
    triton_client.generate(url, "tensorrt_llm_bls", {**body, "id": "text"})
    line = joined(place, "text", "tensorrt_llm_bls")
    assert (line["status"], line["key"], line["model"], line["generated_tokens"]) == (200, "alice", "demo", 4)
    with pytest.raises(triton_client.TritonError):
        triton_client.generate(url, "tensorrt_llm_bls", {**body, "api_key": "sk-wrong", "id": "text-refused"})
    assert joined(place, "text-refused", "tensorrt_llm_bls")["status"] == 401


def test_nothing_of_a_prompt_is_told(place: Place) -> None:
    assert SECRET not in place.server.log_path.read_text("utf-8", "replace")
    assert not [span for span in place.receiver.spans if SECRET in repr(span)]


# --- dashboard and rules ---


@pytest.fixture
def prometheus(place: Place, tmp_path: Path) -> Iterator[str]:
    """URL of a Prometheus that scrapes the server twice a second, with our rules."""
    port = free_port()
    target = place.server.openai_url.removeprefix("http://").removesuffix("/v1")
    folder = ROOT / "deploy" / "prometheus"
    config = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(folder / "rules.yaml"), str(folder / "alerts.yaml")],
        "scrape_configs": [{"job_name": "openai_bls", "static_configs": [{"targets": [target]}]}],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [
        tool("prometheus"),
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    with subprocess.Popen(command) as process:
        try:
            yield f"http://127.0.0.1:{port}/api/v1"
        finally:
            process.terminate()


def test_every_query_of_the_dashboard_and_the_rules_finds_something(place: Place, prometheus: str) -> None:
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "dashboards" / "openai_bls.json").read_text("utf-8"))
    targets = {target["expr"]: panel["title"] for panel in dashboard["panels"] for target in panel.get("targets", ())}
    groups = yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules.yaml").read_text("utf-8"))["groups"]
    targets |= {rule["record"]: "rules.yaml" for group in groups for rule in group["rules"]}

    def asked(query: str) -> list[Any]:
        for variable, value in (("$__rate_interval", "10s"), ("$instance", ".*"), ("$model", ".*")):
            query = query.replace(variable, value)
        answer = httpx.post(f"{prometheus}/query", data={"query": query}, timeout=60).json()
        assert answer["status"] == "success", (query, answer)
        return [sample for sample in answer["data"]["result"] if sample["value"][1] != "NaN"]

    def answers() -> bool:
        try:
            return httpx.get(f"{prometheus}/status/buildinfo").status_code == 200
        except httpx.TransportError:
            return False

    def silent() -> list[str]:
        place.client.chat.completions.create(**CHAT)
        with pytest.raises(openai.BadRequestError):
            place.client.chat.completions.create(**CHAT, top_p=7)
        return [f"{title}: {query}" for query, title in targets.items() if not asked(query)]

    until(answers)
    deadline = time.monotonic() + PATIENCE_S
    while (left := silent()) and time.monotonic() < deadline:
        threading.Event().wait(0.2)
    assert not left
    rules = httpx.get(f"{prometheus}/rules").json()["data"]["groups"]
    assert {rule["health"] for group in rules for rule in group["rules"]} == {"ok"}
    firing = httpx.get(f"{prometheus}/alerts").json()["data"]["alerts"]
    assert not [alert for alert in firing if alert["state"] == "firing"]
    # The label of a key shows in the panel, and Grafana's variables have their values.
    keys = asked('sum by (key) (rate(openai_bls_generation_tokens_total{key="alice"}[10s]))')
    assert [sample["metric"] for sample in keys] == [{"key": "alice"}]
    names = httpx.get(f"{prometheus}/label/model/values", params={"match[]": "openai_bls_engine_up"}).json()["data"]
    assert names == ["demo"]
