"""ASGI middleware that observes requests: from the head of a request to the end of its answer."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_bls.api.http.handlers import CONTEXT
from openai_bls.pipeline.observation.observer import Observer


class ObservedRequests:
    """Middleware that begins each request's context, which an observer is told of at its end.

    Args:
        app: application that answers.
        observer: observer that learns of the requests.
        unobserved: pattern of the paths of probes, scrapes and pages.
    """

    def __init__(self, app: ASGIApp, observer: Observer, unobserved: re.Pattern[str]) -> None:
        self._app = app
        self._observer = observer
        self._unobserved = unobserved

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or self._unobserved.match(scope["path"]):
            await self._app(scope, receive, send)
            return
        headers = self._observer.headers
        trace_headers = {
            name: value.decode("latin-1")
            for header, value in (scope["headers"] if headers else ())
            if (name := header.decode("latin-1")) in headers
        }
        context = self._observer.begin(scope["method"], scope["path"], trace_headers)
        scope[CONTEXT] = context

        async def observing(message: Message) -> None:
            if message["type"] == "http.response.start":
                context.http_status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, observing)
        finally:
            context.released()
