"""Endpoint of the API: its route on /v1, its entry on Triton, its metrics label and its smoke check."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, get_type_hints

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from openai_bls.api.common.bodies import json_object
from openai_bls.api.common.encoding import encode
from openai_bls.api.common.event_sink import Cancellable, ChunkSink
from openai_bls.api.common.one_shot import OneShot
from openai_bls.api.http.handlers import Api, ErrorAnswer, Handler, error_response
from openai_bls.api.operation import Operation
from openai_bls.core.errors import ApiError
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.service import Service, within

Respond = Callable[[Service, RequestContext, ChunkSink], Awaitable[bytes | Cancellable]]
"""The whole answer as JSON text, or a streamed answer on its way into the sink; raises ApiError."""
TritonEntry = Callable[[dict[str, Any]], Respond]
"""Triton entry: takes a request body, checks what needs no service; raises InvalidRequestError."""


@dataclass(frozen=True, kw_only=True)
class Smoke:
    """Smoke check: one request and the check of its answer."""

    body: dict[str, Any]
    """Body of the request; the model's name is added."""
    check: Callable[[Any], str]
    """Check of the decoded answer: returns a short summary, raises AssertionError with a sentence."""
    optional: bool = False
    """A refusal by name passes: not every engine supports it."""
    tasks: tuple[str, ...] = ()
    """Asked of a task model with one of these, and of none if there is none; empty asks the served engine."""


def expect(condition: object, sentence: str) -> None:
    """Fail a smoke check.

    Raises:
        AssertionError: the condition is false.
    """
    if not condition:
        raise AssertionError(sentence)


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Endpoint of the API on /v1 and on Triton's ports."""

    name: str
    """Label in the metrics; value of the input `endpoint` on Triton."""
    paths: tuple[str, ...]
    """Paths on /v1's server, the documented one first."""
    handler: Callable[[Api], Handler]
    """Maker of the handler of an application."""
    operation: Operation
    """Description of the endpoint for /openapi.json."""
    method: str = "POST"
    triton: TritonEntry | None = None
    """None: not served on Triton's ports."""
    smoke: Smoke | None = None
    has_guards: bool = True
    """Requests that have a body, and their answers, are shown to the guards, if there are any."""
    answer_error: ErrorAnswer = error_response
    uploads: bool = False
    """Bodies go to disk as they come, and are bounded by the handler."""
    background: Callable[[Api], Coroutine[Any, Any, None]] | None = None
    """Work beside the requests, for as long as the server runs."""
    id_header: str = "x-request-id"
    """Response header that carries the request's id, besides `x-request-id`."""

    def routes(self, api: Api) -> list[Route]:
        """The endpoint's routes in an application."""
        handler = api.guarded(
            self.handler(api),
            endpoint=self.name,
            has_guards=self.has_guards,
            answer_error=self.answer_error,
            id_header=self.id_header,
            uploads=self.uploads,
        )
        return [Route(path, handler, methods=[self.method]) for path in self.paths]


def one_shot(
    name: str,
    answer: OneShot,
    *,
    body: Any,
    summary: str,
    paths: tuple[str, ...] | None = None,
    smoke: Smoke | None = None,
    has_guards: bool = True,
    errors: frozenset[type[ApiError]] = frozenset(),
) -> Endpoint:
    """An endpoint that answers at once and generates nothing, on /v1 and on Triton's ports.

    Args:
        name: name of the endpoint.
        answer: makes the answer to a body; its annotation says of which type.
        body: type of the body.
        summary: description of the endpoint in a few words.
        paths: paths on /v1; None is `/v1/<name>`.
        smoke: smoke check of the endpoint.
        has_guards: see `Endpoint`.
        errors: see `Operation`.
    """

    async def in_time(service: Service, context: RequestContext, body: dict[str, Any]) -> msgspec.Struct:
        return await within(context.deadline(None, time.monotonic()), answer(service, context, body))

    def handler(api: Api) -> Handler:
        async def handle(request: Request, context: RequestContext) -> Response:
            body = await api.parsed(request, context, json_object)
            return await api.answered(request, context, in_time(api.service, context, body))

        return handle

    def triton(body: dict[str, Any]) -> Respond:
        async def respond(service: Service, context: RequestContext, sink: ChunkSink) -> bytes:
            return encode(await in_time(service, context, body))

        return respond

    return Endpoint(
        name=name,
        paths=paths or (f"/v1/{name}",),
        handler=handler,
        operation=Operation(summary=summary, body=body, answer=get_type_hints(answer)["return"], errors=errors),
        triton=triton,
        smoke=smoke,
        has_guards=has_guards,
    )
