"""Common parts of the /v1 handlers: bodies, request ids, authentication, errors, streams."""

from __future__ import annotations

import asyncio
import codecs
import functools
import math
import re
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from msgspec import Raw
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from openai_bls.api.common.bodies import json_object
from openai_bls.api.common.encoding import encode, new_id
from openai_bls.api.common.envelope import enveloped
from openai_bls.api.common.events.event_sink import Cancellable
from openai_bls.api.common.large_bodies import check_values, is_large, parsed
from openai_bls.api.http.body_budget import SMALL_BODY_BYTES, BodyBudget, UnreadBytes
from openai_bls.api.http.byte_stream import ByteStream
from openai_bls.api.http.content_coding import unpacked
from openai_bls.api.http.disconnect import unless_disconnected
from openai_bls.api.http.endpoint_app import OWN_CONTEXT, EndpointApp
from openai_bls.api.http.event_stream import EventStream
from openai_bls.api.http.load_header import FORMAT_HEADER, LOAD_HEADER, load_report
from openai_bls.api.http.request_head import Head, authenticated, check_origin, require_certificate
from openai_bls.api.http.request_turns import RequestTurns
from openai_bls.api.http.write_batcher import WriteBatcher
from openai_bls.core.errors import ApiError, TooLargeError
from openai_bls.core.request import TIMEOUT_HEADER, header_timeout
from openai_bls.pipeline.joining import joined
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.service import Service

T = TypeVar("T")

Handler = Callable[[Request, RequestContext], Awaitable[Response]]
"""Maker of the response to a request; raises ApiError."""
ErrorAnswer = Callable[[ApiError, RequestContext], Response]
"""Response to a failed request, in an API's own form."""

CONTEXT = "openai_bls.context"
"""Name of a request's `RequestContext` in its ASGI scope, where requests are observed."""
# In the scope of a request that the server makes itself: the name of the key for which.
_KEY = "openai_bls.key"
_TIMEOUT = TIMEOUT_HEADER.lower().encode()
# Fields of the body that were taken without effect.
_IGNORED = b"openai-bls-ignored"
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class JsonResponse(Response):
    """JSON by the same encoder as everything else."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Compact JSON in UTF-8."""
        return encode(content)


def error_response(error: ApiError, context: RequestContext | None = None) -> Response:
    """An error with its status and the body that OpenAI has."""
    return JsonResponse(error.body(), status_code=error.status, headers=error.headers)


@dataclass(frozen=True, kw_only=True)
class Served:
    """Options of a handler of /v1."""

    name: str
    """Label in the metrics; value of the input `endpoint` on Triton."""
    has_guards: bool = True
    """Requests that have a body, and their answers, are shown to the guards, if there are any."""
    answer_error: ErrorAnswer = error_response
    """Maker of the answer to a request that failed."""
    id_header: str = "x-request-id"
    """Response header that carries the request's id, besides `x-request-id`."""
    uploads: bool = False
    """Bodies go to disk as they come, and are bounded by the handler."""


class Api:
    """Context of the /v1 handlers: service, authentication, streams.

    Args:
        service: service that answers the requests.
        write_batcher: batcher of the event loop that everything runs on.
    """

    def __init__(self, service: Service, write_batcher: WriteBatcher) -> None:
        self.service = service
        self._write_batcher = write_batcher
        self._shared: dict[Any, Any] = {}
        self._turns = RequestTurns()
        self.app: ASGIApp | None = None
        """The application itself."""

    @functools.cached_property
    def _bodies(self) -> BodyBudget:
        return BodyBudget(self.service.settings.max_body_bytes_in_flight, lambda: self.service.api_keys.several)

    @functools.cached_property
    def _unread(self) -> BodyBudget:
        settings, keys = self.service.settings, self.service.api_keys
        full = "has as many large answers that wait to be read"
        return BodyBudget(settings.max_body_bytes_in_flight, lambda: keys.several, full)

    async def dispatch(self, path: str, body: bytes, request_id: str, key: str) -> Response:
        """The response to a request that the server makes itself.

        Args:
            path: path of an endpoint.
            body: JSON text.
            request_id: id of the request.
            key: name of the key for which it is made; it is not asked for one.
        """
        assert self.app is not None
        headers = [(b"content-length", b"%d" % len(body)), (b"x-request-id", request_id.encode())]
        scope = {"type": "http", "method": "POST", "path": path, "root_path": "", "query_string": b""}
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[Any] = []

        async def receive() -> Any:
            # The client is there until the task is cancelled.
            return messages.pop() if messages else await asyncio.get_running_loop().create_future()

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app({**scope, "headers": headers, _KEY: key}, receive, send)
        response = Response(b"".join(message.get("body", b"") for message in sent[1:]), sent[0]["status"])
        response.raw_headers = sent[0]["headers"]
        return response

    def shared(self, make: Callable[[Api], T]) -> T:
        """The application's single object made by `make`, shared by several endpoints."""
        if make not in self._shared:
            self._shared[make] = make(self)
        made: T = self._shared[make]
        return made

    def guarded(self, handler: Handler, served: Served) -> ASGIApp:
        """`handler` with authentication, a request id in and out, and every exception as an error body."""
        service = self.service

        async def respond(request: Request) -> tuple[Response, RequestContext]:
            context: RequestContext | None = request.scope.get(CONTEXT)
            if context is None:
                context = request.scope[OWN_CONTEXT] = service.observer.begin(request.method, request.scope["path"])
            head: Head = dict(reversed(request.scope["headers"]))
            request_id = head.get(b"x-request-id", b"").decode("latin-1")
            if not _REQUEST_ID.fullmatch(request_id):
                request_id = new_id("req_")
            context.request_id = request_id
            context.endpoint = served.name
            context.has_guards = served.has_guards

            def refuse(error: ApiError) -> Response:
                service.refused(context, error)
                return served.answer_error(error, context)

            response = await enveloped(context, answer(request, head, context), refuse)
            if service.api_keys.required:
                response.headers.update(service.budgets.headers(context.key))
            # As OpenAI has it: milliseconds until the answer, or a stream, begins.
            processing_ms = b"%d" % round((time.monotonic() - context.began_at) * 1e3)
            response.raw_headers += ((b"x-request-id", request_id.encode()), (b"openai-processing-ms", processing_ms))
            if served.id_header != "x-request-id":
                response.headers[served.id_header] = request_id
            if context.ignored:
                response.raw_headers.append((_IGNORED, ", ".join(context.ignored).encode()))
            form = head.get(FORMAT_HEADER)
            if form is not None and (report := load_report(service, context.model, form.decode("latin-1"))) is not None:
                response.headers[LOAD_HEADER] = report
            if response.status_code == 413 or (response.status_code >= 400 and b"expect" in head):
                # The rest of it is not worth reading, or will never be sent.
                response.headers["connection"] = "close"
            return response, context

        async def answer(request: Request, head: Head, context: RequestContext) -> Response:
            # By the head alone: nothing of the body has been asked for.
            self._check_head(request, head, context)
            await self._turns.wait(context.key)
            try:
                if b"content-encoding" in head and request.method == "POST":
                    request = unpacked(request, functools.partial(self._turns.wait, context.key))
                if not served.uploads:
                    self._reserve_body(head, context)
                response = await handler(request, context)
                # A stream has none yet.
                size = len(getattr(response, "body", b""))
                if size > SMALL_BODY_BYTES:
                    self._unread.take(context.key, size)
                    context.answer_bytes = size
                return response
            except ClientDisconnect:
                return Response(status_code=499)
            finally:
                give_back = functools.partial(self._bodies.give_back, context.key, context.body_bytes)
                if context.keeps_body:
                    context.on_end = give_back
                else:
                    give_back()

        return EndpointApp(respond, self._unread)

    def _check_head(self, request: Request, head: Head, context: RequestContext) -> None:
        """Take the key and the timeout of a request, as its head says them.

        Raises:
            ApiError: it lacks the right key or certificate, or its head is bad.
        """
        service = self.service
        if _KEY in request.scope:
            context.key = request.scope[_KEY]
        else:
            if service.settings.ssl_ca_certs:
                require_certificate(request)
            if service.api_keys.required:
                context.key = authenticated(head, service.api_keys)
        if b"origin" in head and request.method == "POST":
            check_origin(head, service.settings.origins)
        timeout = head.get(_TIMEOUT)
        if timeout is not None:
            context.timeout_s = header_timeout(timeout.decode("latin-1"))

    def _reserve_body(self, head: Head, context: RequestContext) -> None:
        """Reserve room for the body that the head declares; `body` reserves what it reads beyond that.

        Raises:
            TooLargeError: it is too large.
            OverloadedError: there is no room.
        """
        limit = self.service.settings.max_request_bytes
        declared = int(head.get(b"content-length", b"0"))
        if declared > limit:
            raise TooLargeError(limit)
        self._bodies.take(context.key, declared)
        context.body_bytes = declared

    async def body(self, request: Request, context: RequestContext) -> bytes:
        """The request's body, as the guard leaves it.

        Raises:
            TooLargeError: it is too large.
            OverloadedError: there is no room for it.
            InvalidRequestError: it has too many values, or is no JSON object for the guard.
            ApiError: the guard refuses the request, or has failed.
            ClientDisconnect: the client has gone.
        """
        body = await self.received(request, context)
        is_guarded = self.service.guards is not None and context.has_guards
        limit = self.service.settings.max_request_values

        def check() -> None:
            check_values(body, limit)
            if is_guarded:
                json_object(body)

        if is_guarded or is_large(body):
            await parsed(check, large=is_large(body), key=context.key)
        if not is_guarded:
            return body
        guarded: bytes = await unless_disconnected(request, self.service.guarded_body(context, body))
        return guarded

    async def parsed(self, request: Request, context: RequestContext, parse: Callable[[bytes], T]) -> T:
        """Result of `parse` for the request's body, of a large one in a thread; raises as `body` and `parse` do."""
        body = await self.body(request, context)
        return await parsed(lambda: parse(body), large=is_large(body), key=context.key)

    async def answered(self, request: Request, context: RequestContext, work: Coroutine[Any, Any, Any]) -> Response:
        """The response with the whole answer, which `work` makes, as the guard leaves it.

        Raises:
            ApiError: of `work`, or the guard refuses the answer or has failed.
            ClientDisconnect: the client has gone; `work` is cancelled.
        """
        guarded = context.guarded
        if guarded is None:
            return JsonResponse(await unless_disconnected(request, work))

        async def encoded() -> bytes:
            return encode(await work)

        return JsonResponse(Raw(await unless_disconnected(request, guarded.whole(encoded()))))

    async def received(self, request: Request, context: RequestContext) -> bytes:
        """The request's body as it came.

        Raises:
            TooLargeError: it is too large.
            OverloadedError: there is no room for it.
            ClientDisconnect: the client has gone.
        """
        limit = self.service.settings.max_request_bytes
        chunks: list[bytes] = []
        size = 0
        more = True
        while more:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunk, more = message.get("body", b""), message.get("more_body", False)
            size += len(chunk)
            if size > limit:
                raise TooLargeError(limit)
            reserved = context.body_bytes
            if size > reserved:
                self._bodies.take(context.key, size - reserved, reserved)
                context.body_bytes = size
            chunks.append(chunk)
        # Windows' editors and PowerShell write a mark before the text.
        return (await joined(chunks)).removeprefix(codecs.BOM_UTF8)

    def event_stream(self, context: RequestContext, max_silence_s: float = math.inf, **options: Any) -> EventStream:
        """A new stream of events.

        Args:
            context: context of the request.
            max_silence_s: most seconds of silence that the API's clients bear, whatever the setting says.
            options: further arguments of `EventStream`.
        """
        interval = min(self.service.settings.keep_alive_interval_s, max_silence_s)
        return EventStream(interval, self._write_batcher, unread=UnreadBytes(self._unread, context.key), **options)

    def byte_stream(self, context: RequestContext, content_type: str) -> ByteStream:
        """A new stream of bytes of this content type."""
        return ByteStream(content_type, self._write_batcher, UnreadBytes(self._unread, context.key))

    async def streamed(
        self,
        request: Request,
        context: RequestContext,
        stream: EventStream,
        generation: Cancellable,
        answer_error: ErrorAnswer = error_response,
    ) -> Response:
        """The response that sends `stream`, into which `generation`, already started, writes.

        An error before the first event still has its own status.
        """
        stream.on_disconnect = generation.cancel
        error = await unless_disconnected(request, stream.first())
        if error is not None:
            self.service.refused(context, error)
            return answer_error(error, context)
        return stream
