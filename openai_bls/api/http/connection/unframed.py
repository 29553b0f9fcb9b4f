"""Answers to clients of HTTP/1.0, which know no chunks: the end of the connection ends a body without a length."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class Unframed:
    """ASGI application that answers one request of HTTP/1.0.

    Args:
        app: application that makes the answer.
    """

    cycle: RequestResponseCycle
    """The request and its answer as uvicorn has them, known before this is called."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._has_length = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""

        async def send_unframed(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._has_length = any(name.lower() == b"content-length" for name, _ in message["headers"])
                if not self._has_length:
                    # uvicorn says nothing of chunks then, and takes the body for empty.
                    self.cycle.chunked_encoding = False
            elif not self._has_length:
                self.cycle.transport.write(message.get("body", b""))
                message = {**message, "body": b""}
            await send(message)

        await self._app(scope, receive, send_unframed)
