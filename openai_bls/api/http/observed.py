"""ASGI middleware that observes requests: from the head of a request to the end of its answer."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_bls.core.api_keys import key_name
from openai_bls.pipeline.observed_request import observed_request
from openai_bls.pipeline.observer import Observer


class ObservedRequests:
    """Middleware that makes each request an `ObservedRequest`.

    Args:
        app: that answers.
        observer: told of the requests.
        unobserved: pattern of the paths of probes, scrapes and pages.
    """

    def __init__(self, app: ASGIApp, observer: Observer, unobserved: re.Pattern[str]) -> None:
        self._app = app
        self._observer = observer
        self._unobserved = unobserved

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or self._unobserved.match(scope["path"]):
            # The server may have begun this task within that of the connection's last request.
            observed_request.set(None)
            await self._app(scope, receive, send)
            return
        headers = self._observer.headers
        context = {
            name: value.decode("latin-1")
            for header, value in (scope["headers"] if headers else ())
            if (name := header.decode("latin-1")) in headers
        }
        observed = self._observer.begin(scope["method"], scope["path"], context)
        observed_request.set(observed)
        key_name.set("")

        async def observing(message: Message) -> None:
            if message["type"] == "http.response.start":
                observed.http_status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, observing)
        finally:
            observed.key = key_name.get()
            observed.released()
