"""Context of one request: its key, timeout and guards, and what its log line and its trace tell of it in the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from openai_bls.core.errors import ApiError
from openai_bls.core.request import Deadline, Requested, ValidRequest
from openai_bls.core.request_record import RequestRecord
from openai_bls.core.usage import Usage
from openai_bls.pipeline.guards.guards import GuardedRequest

TRITON = "TRITON"
"""Method of a request that came on Triton's endpoints, `generate`, `generate_stream` or gRPC, instead of an HTTP
method."""
CLIENT_GONE = 499
"""Status of a request whose client went away before its end."""

_NO_HEADERS: Mapping[str, str] = {}


def _nothing() -> None:
    """Nothing is done."""


class RequestContext:
    """One request, passed to all that work for it. Belongs to the event loop's thread.

    It ends when the API has answered it and everything that the API began for it has ended: a stream on Triton's
    endpoints goes on when the API is done with it.

    Args:
        method: method of HTTP, or `TRITON`.
        path: path of HTTP, or the name of the Triton model.
        trace_headers: headers of a trace that it belongs to, in small letters.
        observer: observer that learns of the end; None is none.
    """

    __slots__ = (
        "_observer",
        "_parts",
        "answer_bytes",
        "began_at",
        "began_at_ns",
        "body_bytes",
        "ended_at",
        "endpoint",
        "error",
        "guarded",
        "has_guards",
        "http_status",
        "ignored",
        "keeps_body",
        "key",
        "method",
        "model",
        "on_end",
        "path",
        "records",
        "request",
        "request_id",
        "stream",
        "timeout_s",
        "trace_headers",
    )

    def __init__(
        self,
        method: str = "",
        path: str = "",
        trace_headers: Mapping[str, str] = _NO_HEADERS,
        observer: RequestObserver | None = None,
    ) -> None:
        self._observer = observer
        self._parts = 1
        self.began_at = self.ended_at = time.monotonic()
        self.began_at_ns = time.time_ns()
        """Time of `began_at` in nanoseconds since 1970."""
        self.method = method
        self.path = path
        self.trace_headers = trace_headers
        self.request_id = ""
        """Id of the request, from the client or made for it."""
        self.endpoint = ""
        """Name in the metrics; empty if the request named no endpoint."""
        self.model = ""
        """Name of the model in the metrics; the client's name for it if the request was refused."""
        self.key = ""
        """Name of the API key that it came with; empty if that has none."""
        self.timeout_s: float | None = None
        """Timeout that came outside the body: in a header, or as Triton's own."""
        self.body_bytes = 0
        """Bytes that are reserved for its body."""
        self.answer_bytes = 0
        """Bytes that are reserved for its answer, until the client has read it."""
        self.keeps_body = False
        """True if its body is held until its end, not until its answer begins."""
        self.on_end: Callable[[], object] = _nothing
        """Called at its end."""
        self.has_guards = False
        """True if guards, where there are any, see the body and the answer."""
        self.guarded: GuardedRequest | None = None
        """Guards of the request, if it has some and they let it through."""
        self.request: ValidRequest | None = None
        """The request to an engine, without what may be large."""
        self.stream: bool | None = None
        """Whether its answer is to be streamed; None if no body that says so was read."""
        self.records: list[RequestRecord] = []
        self.ignored: tuple[str, ...] = ()
        """Fields of the body that were taken without effect."""
        self.http_status = 0
        self.error: ApiError | None = None
        """Error of the answer."""

    def deadline(self, timeout_s: float | None, began_at: float) -> Deadline | None:
        """Deadline by the shorter of two timeouts, that of the body and the one outside it; None if it has neither.

        Args:
            timeout_s: timeout of the body in seconds.
            began_at: `time.monotonic()` from which they count.
        """
        if timeout_s is None or (self.timeout_s is not None and self.timeout_s < timeout_s):
            timeout_s = self.timeout_s
        return None if timeout_s is None else Deadline(began_at + timeout_s, timeout_s)

    def asks(self, request: ValidRequest) -> None:
        """Note what is asked for, as soon as the body has been read: before anything can refuse it."""
        self.stream = request.stream
        structured = None if request.structured is None else Requested({}, request.structured.param)
        self.request = msgspec.structs.replace(
            request,
            images=(),
            prompt=None,
            prompt_token_ids=[],
            tools=None,
            structured=structured,
            kv_transfer_params=None,
        )
        # What was taken out of the body before.
        self.ignored = tuple(dict.fromkeys((*self.ignored, *request.ignored)))

    def work_began_at(self) -> float:
        """`time.monotonic()` at which a guard got it; now, if it has no guard."""
        return time.monotonic() if self.guarded is None else self.guarded.began_at

    def opened(self) -> RequestContext:
        """Wait for one more part, which ends by `recorded` or `released`.

        Returns:
            The request itself; once it has ended, another for what still goes on.
        """
        if not self._parts:
            return RequestContext(self.method, self.path, observer=self._observer)
        self._parts += 1
        return self

    def recorded(self, record: RequestRecord) -> None:
        """End a part that reached a model."""
        self.records.append(record)
        self.model, self.endpoint, self.key = record.model, record.endpoint, record.key
        self.released()

    def begin_work(self) -> None:
        """The answer, or the beginning of it, is made from now on."""
        if self._observer is not None:
            self._observer.at_work.add(self)

    def end_work(self) -> None:
        """Note that the work of the request has been done."""
        if self._observer is not None:
            self._observer.at_work.discard(self)
            self._observer.worked.add(self.endpoint)

    def released(self) -> None:
        """End a part."""
        self._parts -= 1
        if not self._parts:
            self.ended_at = time.monotonic()
            self.on_end()
            if self._observer is not None:
                self._observer.ended(self)

    def left(self) -> None:
        """End a part of a request that nobody is told of."""
        self._observer = None
        self.released()

    @property
    def failure(self) -> ApiError | None:
        """The error that it ended with."""
        if self.error is not None:
            return self.error
        return next((r.outcome for r in reversed(self.records) if isinstance(r.outcome, ApiError)), None)

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
    def total(self) -> RequestRecord | None:
        """Sum of the request's records, with the times of the first; None if no model was reached."""
        records = self.records
        if len(records) < 2:
            return records[0] if records else None

        def first(name: str) -> float | None:
            return min((at for record in records if (at := getattr(record, name)) is not None), default=None)

        usages = [record.usage for record in records]
        images = [n for usage in usages if (n := usage.prompt_tokens_details.image_tokens) is not None]
        return msgspec.structs.replace(
            records[-1],
            finish_reasons=[reason for record in records for reason in record.finish_reasons],
            usage=Usage.of(
                sum(usage.prompt_tokens for usage in usages),
                sum(usage.completion_tokens for usage in usages),
                cached=sum(usage.prompt_tokens_details.cached_tokens for usage in usages),
                reasoning=sum(usage.completion_tokens_details.reasoning_tokens for usage in usages),
                image=sum(images) if images else None,
            ),
            first_token_at=first("first_token_at"),
            queued_at=first("queued_at"),
            submitted_at=first("submitted_at"),
            queue_s=next((record.queue_s for record in records if record.queue_s is not None), None),
        )


class RequestObserver(Protocol):
    """Receiver of ended requests; `observer.Observer` is one."""

    at_work: set[RequestContext]
    worked: set[str]

    def ended(self, context: RequestContext) -> None:
        """Tell of a request that has ended."""
