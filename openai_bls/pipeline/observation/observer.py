"""Observer of requests: hands each one that has ended to the request log and to the tracer."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.observation.request_log import RequestLog
from openai_bls.pipeline.observation.tracing import Tracer

logger = logging.getLogger(__name__)


class Observer:
    """Observer of one process's requests. All but `close` belongs to the event loop's thread.

    Args:
        log: log of the requests; None is none.
        tracer: tracer of the requests; None is none.
    """

    def __init__(self, log: RequestLog | None = None, tracer: Tracer | None = None) -> None:
        self._log = log
        self._tracer = tracer
        self.headers: frozenset[str] = frozenset() if tracer is None else tracer.headers
        """Headers that `begin` wants, in small letters."""
        self.at_work: set[RequestContext] = set()
        """Requests whose answer, or the beginning of it, is being made."""
        self.worked: set[str] = set()
        """Endpoints of requests that have left `at_work` since `take_endpoints`."""

    @classmethod
    def of(cls, settings: OpenAiBlsSettings) -> Observer:
        """Observer that the settings ask for.

        Raises:
            TracingError: tracing cannot be set up.
        """
        tracer = Tracer() if settings.tracing else None
        return cls(None if settings.request_log == "off" else RequestLog(settings.request_log), tracer)

    @property
    def active(self) -> bool:
        """True if requests are to be observed at all."""
        return self._log is not None or self._tracer is not None

    def begin(self, method: str, path: str, trace_headers: Mapping[str, str] | None = None) -> RequestContext:
        """A request that arrives now.

        Args:
            method: method of HTTP, or `TRITON`.
            path: path of HTTP, or the name of the Triton model.
            trace_headers: request headers that `headers` names.
        """
        return RequestContext(method, path, trace_headers or {}, self)

    def take_endpoints(self) -> list[str]:
        """Endpoints that have been at work since the last call, sorted."""
        found = self.worked | {context.endpoint for context in self.at_work}
        self.worked.clear()
        return sorted(found)

    def ended(self, context: RequestContext) -> None:
        """Tell of a request that has ended."""
        try:
            trace_id = self._tracer.ended(context) if self._tracer is not None else ""
            if self._log is not None:
                self._log.ended(context, trace_id)
        except Exception:
            # The request itself is done.
            logger.exception("a request could not be logged or traced")

    def close(self) -> None:
        """Write and send what waits."""
        if self._log is not None:
            self._log.close()
        if self._tracer is not None:
            self._tracer.close()
