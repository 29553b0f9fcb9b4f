"""Tracing in process: what is refused at the start, what is not imported, and spans without a server."""

from __future__ import annotations

import importlib.util
import logging
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.pipeline.observation.observer import Observer
from openai_bls.pipeline.observation.tracing import Tracer, TracingError, _first_attributes, _last_attributes
from tests.unit.core_support import chat
from tests.unit.pipeline.observation.test_request_log import answered, observed

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_nothing_is_imported_without_it() -> None:
    code = (
        "import sys; from openai_bls.core.settings import OpenAiBlsSettings as S\n"
        "from openai_bls.pipeline.observation.observer import Observer\n"
        "Observer.of(S(request_log='off'))\n"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if "otlp" in name else real(name))
    with pytest.raises(TracingError, match=r"pip install opentelemetry-sdk"):
        Observer.of(OpenAiBlsSettings(tracing=True, request_log="off"))


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_PROTOCOL.*http/protobuf"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL.*http/protobuf"),
        ("OTEL_TRACES_EXPORTER", "zipkin", "zipkin.* otlp "),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "-1", "max_queue_size"),
    ],
)
def test_variables_that_are_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(TracingError, match=says):
        Tracer()


def test_a_trace_goes_on_whether_it_is_sampled_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    tracer = Tracer()
    assert tracer.headers >= {"traceparent", "tracestate", "baggage"}
    for flags in ("00", "01"):
        assert tracer.ended(observed(trace_headers={"traceparent": PARENT[:-2] + flags})) == PARENT.split("-")[1]
    # Garbage begins a new one.
    for context in ({}, {"traceparent": "garbage"}, {"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-01"}):
        trace_id = tracer.ended(observed(trace_headers=context))
        assert len(trace_id) == 32
        assert trace_id != PARENT.split("-")[1]
    tracer.close()


def test_attributes_are_short_whatever_clients_send() -> None:
    made = observed(request_id="r" * 100_000)
    made.model = made.path = "m" * 100_000
    found = _first_attributes(made)
    assert {len(found[name]) for name in ("openai_bls.request_id", "gen_ai.request.model", "url.path")} == {256}


def test_sampling_parameters_are_those_that_were_given() -> None:
    asked = chat(temperature=0, top_p=0.5, seed=3, max_tokens=7, min_p=0.1)
    found = _last_attributes(observed(request=asked))
    prefix = "gen_ai.request."
    assert {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)} == {
        "max_tokens": 7,
        "temperature": 0,
        "top_p": 0.5,
        "seed": 3,
        "stream": False,
    }


def test_a_collector_that_hangs_holds_up_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    released = threading.Event()

    class Hanging(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            released.wait(20)

    server = HTTPServer(("127.0.0.1", 0), Hanging)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "64")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "32")
    monkeypatch.setattr("openai_bls.pipeline.observation.tracing._CLOSE_S", 0.5)
    try:
        tracer = Tracer()
        with caplog.at_level(logging.WARNING, "openai_bls"):
            for _ in range(100):
                tracer.ended(answered())
            tracer.close()
        # 500 spans, of which the queue holds 64.
        assert sum("traces may be lost" in message for message in caplog.messages) == 1
    finally:
        released.set()
        server.shutdown()
        server.server_close()
