"""Endpoint of the API: its route on /v1, its entry on Triton, its name in the metrics, description and smoke check."""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_type_hints

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from openai_bls.api.common.bodies import json_object
from openai_bls.api.common.encoding import encode
from openai_bls.api.common.events.event_sink import Cancellable, ChunkSink
from openai_bls.api.common.fields import IgnoredFields
from openai_bls.api.common.large_bodies import parsed
from openai_bls.api.common.lifted import Lifted
from openai_bls.api.common.one_shot import OneShot
from openai_bls.api.common.unsupported import Unsupported
from openai_bls.api.http.handlers import Api, Served
from openai_bls.core.errors import ApiError
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.service import Service, within

FORM = "multipart/form-data"
"""Content type of forms."""

ApiHandler = Callable[[Api, Request, RequestContext], Awaitable[Response]]
"""Maker of the response to a request to an application; raises ApiError."""
Respond = Callable[[Service, RequestContext, ChunkSink], Awaitable[bytes | Cancellable]]
"""The whole answer as JSON text, or a streamed answer on its way into the sink; raises ApiError."""
TritonEntry = Callable[[Lifted[dict[str, Any]]], Respond]
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
    """Asked of a model with one of these, and of none if there is none; empty asks the served engine."""
    engines: tuple[str, ...] = ("generate",)
    """Tasks of which the served engine may have one, where it is asked; empty is any."""


def expect(condition: object, sentence: str) -> None:
    """Fail a smoke check.

    Raises:
        AssertionError: the condition is false.
    """
    if not condition:
        raise AssertionError(sentence)


@dataclass(frozen=True, kw_only=True)
class Operation:
    """Description of an endpoint for openapi.json: its types, as the code reads and writes them."""

    summary: str
    """A few words."""
    body: Any = None
    """Type of the request body, or a tuple of types; None takes none."""
    body_type: str = "application/json"
    """Content type of the request body."""
    example: Mapping[str, Any] | None = None
    """A body for people to begin with; None is that of the smoke check."""
    answer: Any = None
    """Type of the whole answer, or a tuple of types, which is JSON unless it is bytes; None has no body."""
    events: Any = None
    """Type of the events of a streamed answer, or a tuple of types; None is never streamed."""
    query: Any = None
    """Struct whose fields are the query parameters."""
    error: Any = None
    """Type of an error's body; None is OpenAI's."""
    statuses: Mapping[int, int] = field(default_factory=dict)
    """Status of an error elsewhere → the one that it has here."""
    errors: frozenset[type[ApiError]] = frozenset()
    """Errors that other operations do not answer with."""
    unsupported: Mapping[Any, Mapping[str, Unsupported]] = field(default_factory=dict)
    """Struct → its fields that are refused except at some values."""
    optional_tags: frozenset[Any] = frozenset()
    """Structs of the body whose type may be left out."""

    @property
    def bodies(self) -> tuple[Any, ...]:
        """Types of the request body."""
        return types_of(self.body)


def types_of(described: Any) -> tuple[Any, ...]:
    """The types that an operation is described with: one, several, or none."""
    return described if isinstance(described, tuple) else (described,) if described is not None else ()


@dataclass(frozen=True, kw_only=True)
class Endpoint(Served):
    """Endpoint of the API on /v1 and on Triton's ports."""

    paths: tuple[str, ...]
    """Paths on /v1's server, the documented one first."""
    handler: ApiHandler
    operation: Operation
    """Description of the endpoint for /openapi.json."""
    method: str = "POST"
    triton: TritonEntry | None = None
    """None: not served on Triton's ports."""
    smoke: Smoke | None = None
    background: Callable[[Api], Coroutine[Any, Any, None]] | None = None
    """Background work for as long as the server runs."""

    def routes(self, api: Api) -> list[Route]:
        """The endpoint's routes in an application."""
        handler = api.guarded(functools.partial(self.handler, api), self)
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
    unsupported: Mapping[Any, Mapping[str, Unsupported]] | None = None,
    optional_tags: frozenset[Any] = frozenset(),
) -> Endpoint:
    """An endpoint that answers at once and generates nothing, on /v1 and on Triton's ports.

    Args:
        name: name of the endpoint.
        answer: makes the answer to a body; its annotation says of which type.
        body: type of the body.
        summary: description of the endpoint in a few words.
        paths: paths on /v1; None is `/v1/<name>`.
        smoke: smoke check of the endpoint.
        has_guards: see `Served`.
        errors: see `Operation`.
        unsupported: see `Operation`.
        optional_tags: see `Operation`.
    """

    async def in_time(
        service: Service, context: RequestContext, given: dict[str, Any]
    ) -> msgspec.Struct | Sequence[msgspec.Struct]:
        ignored = IgnoredFields(service.settings.unknown_fields)
        given = ignored.body(given, body)
        context.ignored = ignored.names
        return await within(context.deadline(None, time.monotonic()), answer(service, context, given))

    async def handle(api: Api, request: Request, context: RequestContext) -> Response:
        body = await api.parsed(request, context, json_object)
        return await api.answered(request, context, in_time(api.service, context, body))

    def triton(given: Lifted[dict[str, Any]]) -> Respond:
        async def respond(service: Service, context: RequestContext, sink: ChunkSink) -> bytes:
            body = await parsed(given.whole, large=given.large, key=context.key)
            return encode(await in_time(service, context, body))

        return respond

    return Endpoint(
        name=name,
        paths=paths or (f"/v1/{name}",),
        handler=handle,
        operation=Operation(
            summary=summary,
            body=body,
            answer=get_type_hints(answer)["return"],
            errors=errors,
            unsupported=unsupported or {},
            optional_tags=optional_tags,
        ),
        triton=triton,
        smoke=smoke,
        has_guards=has_guards,
    )
