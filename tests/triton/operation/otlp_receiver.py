"""Receiver of OTLP over HTTP: protobuf, as the SDK sends it, and JSON, as Triton does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Span(NamedTuple):
    """One span."""

    service: str
    """Empty for Triton's."""
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]


class Receiver:
    """Spans that have come, and the URL to send them to."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.spans: list[Span] = []

    def take(self, kind: str, body: bytes) -> None:
        """Take what was posted."""
        self.spans += _of_json(json.loads(body)) if "json" in kind else _of_protobuf(body)

    def trace(self, trace_id: str) -> list[Span]:
        """All spans of a trace up to now."""
        return [span for span in list(self.spans) if span.trace_id == trace_id]


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.take(self.headers["content-type"], body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(server.server_port)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield receiver
        server.shutdown()


def _of_protobuf(body: bytes) -> Iterator[Span]:
    request = ExportTraceServiceRequest()
    request.ParseFromString(body)
    for resource in request.resource_spans:
        service = _values(resource.resource.attributes)["service.name"]
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Span(
                    service,
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    _values(span.attributes),
                )


def _values(attributes: Any) -> dict[str, Any]:
    found = {}
    for attribute in attributes:
        kind = attribute.value.WhichOneof("value")
        value = getattr(attribute.value, kind)
        found[attribute.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found


def _of_json(body: Any) -> Iterator[Span]:
    for resource in body["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                ids = (span["traceId"], span["spanId"], span.get("parentSpanId", ""))
                yield Span("", span["name"], *ids, int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"]), {})
