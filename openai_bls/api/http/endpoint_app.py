"""ASGI application of a route of /v1."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from openai_bls.api.http.body_budget import BodyBudget
from openai_bls.api.http.connection.stream_connection import EXTENSION, StreamConnection
from openai_bls.pipeline.lifecycle.context import RequestContext

OWN_CONTEXT = "openai_bls.own_context"
"""Name of a request's `RequestContext` in its ASGI scope, where nobody observes the request."""


class EndpointApp:
    """ASGI application of a route: no function, which starlette would take for a handler and wrap once more.

    Args:
        respond: makes the response, with the context in which bytes of its body may be reserved.
        unread: budget that they are of, until the client has read them or has gone.
    """

    def __init__(
        self, respond: Callable[[Request], Awaitable[tuple[Response, RequestContext]]], unread: BodyBudget
    ) -> None:
        self._respond = respond
        self._unread = unread

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            response, context = await self._respond(Request(scope, receive, send))
            if context.answer_bytes:
                await self._send(response, context, scope, receive, send)
            else:
                await response(scope, receive, send)
        finally:
            if OWN_CONTEXT in scope:
                scope[OWN_CONTEXT].left()

    async def _send(
        self, response: Response, context: RequestContext, scope: Scope, receive: Receive, send: Send
    ) -> None:
        give_back = functools.partial(self._unread.give_back, context.key, context.answer_bytes)
        connection: StreamConnection | None = scope.get("extensions", {}).get(EXTENSION)
        try:
            await response(scope, receive, send)
        finally:
            if connection is None:
                give_back()
            else:
                connection.when_read(give_back)
