"""OpenTelemetry traces of requests: made when a request has ended, sent by OTLP over HTTP on a thread of the SDK's.

The packages are imported when a `Tracer` is made, and never where tracing is off. Everything that OpenTelemetry's own
environment variables (`OTEL_*`) say is honoured by the SDK, or refused here.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from openai_bls import __version__
from openai_bls.pipeline.lifecycle.context import TRITON, RequestContext

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

logger = logging.getLogger(__name__)

SERVICE_NAME = "openai_bls"
"""Name of the service where neither OTEL_SERVICE_NAME nor OTEL_RESOURCE_ATTRIBUTES gives another."""

_PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")

# Operations of the semantic conventions for generative AI, by the name of the endpoint in the metrics.
_OPERATIONS = {
    "chat.completions": "chat",
    "responses": "chat",
    "messages": "chat",
    "completions": "text_completion",
    "text_input": "text_completion",
    "embeddings": "embeddings",
}
# Sampling parameters that are attributes gen_ai.request.<name>.
_SAMPLING = frozenset(("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty", "seed"))
# Characters of an attribute: ids, paths and names of models are the clients', and as long as these make them.
_MAX_CHARACTERS = 256
# Seconds that closing waits for the last spans to be taken.
_CLOSE_S = 2.0
# Seconds between two lines in the log about a collector that takes no spans.
_REPEAT_S = 300.0


class TracingError(ValueError):
    """Tracing that cannot be set up; the message is one sentence."""


class Tracer:
    """Traces of one process.

    Raises:
        TracingError: a package is missing, or a variable asks for what is not there.
    """

    def __init__(self) -> None:
        _check_packages()
        _check_environment(os.environ)
        try:
            from opentelemetry import propagate, trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

            resource = Resource.create({"service.version": __version__})
            if str(resource.attributes.get("service.name", "unknown_service")).startswith("unknown_service"):
                resource = resource.merge(Resource({"service.name": SERVICE_NAME}))
            self._provider = TracerProvider(resource=resource)
            if os.environ.get("OTEL_TRACES_EXPORTER", "").strip() != "none":
                self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        except Exception as error:
            # A bad value of a variable, or packages that do not go together.
            raise TracingError(f"tracing cannot be set up: {error}") from error
        _log_sparingly()
        self._tracer = self._provider.get_tracer("openai_bls", __version__)
        self._propagator = propagate.get_global_textmap()
        # Triton itself knows W3C's headers alone, whatever OTEL_PROPAGATORS says.
        self._on_triton = TraceContextTextMapPropagator()
        self._trace = trace
        self.headers = frozenset(self._propagator.fields | self._on_triton.fields)
        """Headers that may hold the context of a trace."""

    def ended(self, observed: RequestContext) -> str:
        """Make the spans of a request that has ended.

        Returns:
            The trace's id, whether it is sampled or not.
        """
        trace = self._trace
        propagator = self._on_triton if observed.method == TRITON else self._propagator
        span = self._tracer.start_span(
            _name(observed),
            propagator.extract(observed.trace_headers),
            trace.SpanKind.SERVER,
            _first_attributes(observed),
            start_time=observed.began_at_ns,
        )
        context = span.get_span_context()
        if span.is_recording():
            span.set_attributes(_last_attributes(observed))
            if observed.status >= 500:
                span.set_status(trace.StatusCode.ERROR)
            self._add_phases(observed, trace.set_span_in_context(span))
            span.end(_at_ns(observed, observed.ended_at))
        return trace.format_trace_id(context.trace_id) if context.is_valid else ""

    def close(self) -> None:
        """Send what is left, for as long as `_CLOSE_S` at most, whatever the collector does."""
        closing = threading.Thread(target=self._provider.shutdown, name="close-tracing", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)

    def _add_phases(self, observed: RequestContext, parent: Context) -> None:
        """Spans of what has happened one after the other: prepare, queue, prefill, decode."""
        total = observed.total
        if total is None or total.queued_at is None:
            return
        ready, first, ended = total.queued_at, total.first_token_at, observed.ended_at
        begins = [("prepare", observed.began_at)]
        if total.queue_s is not None:
            begins.append(("queue", ready))
            ready += total.queue_s
        if total.submitted_at is not None:
            begins.append(("prefill", ready))
        if first is not None:
            begins.append(("decode", max(first, ready)))
            ended = max(record.ended_at for record in observed.records)
        ends = [begun for _, begun in begins[1:]] + [ended]
        for (name, begun), end in zip(begins, ends, strict=True):
            span: Span = self._tracer.start_span(name, parent, start_time=_at_ns(observed, begun))
            span.end(_at_ns(observed, max(begun, end)))


def _check_packages() -> None:
    for package in _PACKAGES:
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise TracingError(
                f"'tracing' needs the package {package}: run "
                "`pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http`"
            )


def _check_environment(environ: Mapping[str, str]) -> None:
    """Refuse what the SDK would find out with the first export, or never."""
    for name in ("OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"):
        if environ.get(name, "").strip() not in ("", "http/protobuf"):
            raise TracingError(f"{name} is {environ[name]!r}: traces are sent as http/protobuf alone")
    if environ.get("OTEL_TRACES_EXPORTER", "").strip() not in ("", "otlp", "none"):
        raise TracingError(f"OTEL_TRACES_EXPORTER is {environ['OTEL_TRACES_EXPORTER']!r}: there are otlp and none")
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        url = environ.get(name, "").strip().lower()
        if url and not url.startswith(("http://", "https://")):
            raise TracingError(f"{name} is no URL that begins with http:// or https://")


def _name(observed: RequestContext) -> str:
    operation = _OPERATIONS.get(observed.endpoint)
    if operation is not None:
        # Not a name that a client has made up.
        return f"{operation} {observed.model}" if observed.records else operation
    return " ".join((observed.method, observed.endpoint)).rstrip()


def _first_attributes(observed: RequestContext) -> dict[str, Any]:
    """Attributes by which a sampler may choose."""
    triton = observed.method == TRITON
    return _known(
        {
            "gen_ai.operation.name": _OPERATIONS.get(observed.endpoint),
            "gen_ai.provider.name": SERVICE_NAME,
            "gen_ai.request.model": observed.model or None,
            "http.request.method": None if triton else observed.method,
            "url.path": None if triton else observed.path,
            "triton.model_name": observed.path if triton else None,
            "openai_bls.endpoint": observed.endpoint or None,
            "openai_bls.request_id": observed.request_id or None,
            "openai_bls.key": observed.key or None,
        }
    )


def _last_attributes(observed: RequestContext) -> dict[str, Any]:
    request, total, failure = observed.request, observed.total, observed.failure
    attributes: dict[str, Any] = {
        "http.response.status_code": observed.status,
        "gen_ai.request.stream": observed.stream,
        "error.type": None if observed.status < 400 else str((failure and failure.code) or observed.status),
    }
    if total is not None:
        usage, first = total.usage, total.first_token_at
        attributes |= {
            "gen_ai.response.model": observed.model,
            "gen_ai.response.finish_reasons": total.finish_reasons or None,
            # As vLLM has it; the conventions' name is the one below.
            "gen_ai.latency.time_in_queue": total.queue_s,
            "gen_ai.response.time_to_first_chunk": None if first is None else first - observed.began_at,
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.prompt_tokens_details.cached_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "gen_ai.usage.reasoning.output_tokens": usage.completion_tokens_details.reasoning_tokens,
        }
    if request is not None:
        given = _SAMPLING.intersection(request.sampling_given)
        attributes |= {f"gen_ai.request.{name}": getattr(request.sampling, name) for name in given}
        attributes |= {
            "gen_ai.request.max_tokens": request.max_tokens,
            "gen_ai.request.choice.count": request.n if request.n != 1 else None,
            "gen_ai.output.type": "text" if request.structured is None else "json",
        }
    return _known(attributes)


def _known(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: _attribute(value) for name, value in attributes.items() if value is not None}


def _attribute(value: Any) -> Any:
    if isinstance(value, str):
        return value[:_MAX_CHARACTERS]
    # A seed may have 64 bits without a sign, an attribute has 63.
    return str(value) if isinstance(value, int) and value >= 2**63 else value


def _at_ns(observed: RequestContext, at: float) -> int:
    """A time of `time.monotonic()` as nanoseconds since 1970."""
    return observed.began_at_ns + int((at - observed.began_at) * 1e9)


class _SparingHandler(logging.Handler):
    """Passes one warning of the SDK on in `_REPEAT_S`: it repeats itself with each batch, with forty lines of traceback
    for a connection that is refused."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._next = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _REPEAT_S
            logger.warning("traces may be lost: %s", record.getMessage())


def _log_sparingly() -> None:
    """Send what the SDK logs to our log."""
    theirs = logging.getLogger("opentelemetry")
    theirs.propagate = False
    if not any(isinstance(handler, _SparingHandler) for handler in theirs.handlers):
        theirs.addHandler(_SparingHandler())
