"""Observed request: what its log line and its trace tell, collected from its arrival to its end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Protocol

from openai_bls.core.errors import ApiError
from openai_bls.core.request import ValidRequest
from openai_bls.core.request_record import RequestRecord
from openai_bls.core.usage import FinishReason, Usage

TRITON = "TRITON"
"""In the place of an HTTP method: the request came on Triton's endpoints, `generate`, `generate_stream` or gRPC."""
CLIENT_GONE = 499
"""Status of a request whose client went away before its end."""


class ObservedRequest:
    """One request. Belongs to the event loop's thread.

    It ends when the API has answered it and everything that the API began for it has ended: a stream on Triton's
    endpoints goes on when the API is done with it.

    Args:
        observer: told of the end.
        method: of HTTP, or `TRITON`.
        path: of HTTP, or the name of the Triton model.
        context: headers of a trace that it belongs to, in small letters.
    """

    __slots__ = (
        "_observer",
        "_parts",
        "began_at",
        "began_at_ns",
        "context",
        "ended_at",
        "endpoint",
        "error",
        "http_status",
        "key",
        "method",
        "model",
        "path",
        "records",
        "request",
        "request_id",
    )

    def __init__(self, observer: RequestObserver, method: str, path: str, context: Mapping[str, str]) -> None:
        self._observer = observer
        self._parts = 1
        self.began_at = self.ended_at = time.monotonic()
        self.began_at_ns = time.time_ns()
        """The same moment in nanoseconds since 1970."""
        self.method = method
        self.path = path
        self.context = context
        self.request_id = ""
        """The client's, or one made for it."""
        self.endpoint = ""
        """Its name in the metrics; empty if there is none."""
        self.model = ""
        """As the metrics call it; as the client does where it was refused."""
        self.key = ""
        """Name of the API key that it came with."""
        self.request: ValidRequest | None = None
        self.records: list[RequestRecord] = []
        self.http_status = 0
        self.error: ApiError | None = None
        """That it was answered with."""

    def opened(self) -> ObservedRequest:
        """Wait for one more part, which ends by `recorded` or `released`.

        Returns:
            The request itself; once it has ended, one of its own for what still goes on.
        """
        if not self._parts:
            return self._observer.begin(self.method, self.path)
        self._parts += 1
        return self

    def recorded(self, record: RequestRecord) -> None:
        """End a part that reached a model."""
        self.records.append(record)
        self.model, self.endpoint, self.key = record.model, record.endpoint, record.key
        self.released()

    def released(self) -> None:
        """End a part."""
        self._parts -= 1
        if not self._parts:
            self.ended_at = time.monotonic()
            self._observer.ended(self)

    @property
    def failure(self) -> ApiError | None:
        """The error that it ended with."""
        errors = [record.outcome for record in self.records if isinstance(record.outcome, ApiError)]
        return self.error or (errors[-1] if errors else None)

    @property
    def status(self) -> int:
        """HTTP status: of the answer, else of the error that ended its stream, or `CLIENT_GONE`."""
        if self.http_status >= 400:
            return self.http_status
        if self.failure is not None:
            return self.failure.status
        if any(record.outcome == "cancelled" for record in self.records):
            return CLIENT_GONE
        return self.http_status or 200

    @property
    def usage(self) -> Usage | None:
        """Tokens; None if no model was reached."""
        if not self.records:
            return None
        usages = [record.usage for record in self.records]
        return Usage.of(
            sum(usage.prompt_tokens for usage in usages),
            sum(usage.completion_tokens for usage in usages),
            cached=sum(usage.prompt_tokens_details.cached_tokens for usage in usages),
            reasoning=sum(usage.completion_tokens_details.reasoning_tokens for usage in usages),
        )

    @property
    def finish_reasons(self) -> list[FinishReason]:
        """One per finished sequence."""
        return [reason for record in self.records for reason in record.finish_reasons]

    @property
    def queued_at(self) -> float | None:
        """Time at which a part of it was first ready for an engine."""
        return min((record.queued_at for record in self.records if record.queued_at is not None), default=None)

    @property
    def submitted_at(self) -> float | None:
        """Time at which the engine was first given a part of it."""
        return min((record.submitted_at for record in self.records if record.submitted_at is not None), default=None)

    @property
    def queue_s(self) -> float | None:
        """Seconds that it waited for a place in the engine's batch."""
        return next((record.queue_s for record in self.records if record.queue_s is not None), None)

    @property
    def first_token_at(self) -> float | None:
        """Time of its first token."""
        return min((r.first_token_at for r in self.records if r.first_token_at is not None), default=None)


class RequestObserver(Protocol):
    """Receiver of ended requests; `observer.Observer` is one."""

    def begin(self, method: str, path: str, context: Mapping[str, str] = ...) -> ObservedRequest:
        """A request that arrives now."""
        ...

    def ended(self, observed: ObservedRequest) -> None:
        """Tell of a request that has ended."""
        ...


observed_request: ContextVar[ObservedRequest | None] = ContextVar("observed_request", default=None)
"""The request that is being answered; None where requests are not observed."""


def observe(**facts: Any) -> None:
    """Set attributes of the observed request that this task answers, if it answers one."""
    observed = observed_request.get()
    if observed is not None:
        for name, value in facts.items():
            setattr(observed, name, value)
