"""Server-sent events on one connection: what one step brings is written at once, a slow reader's piles up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from openai_bls.errors import ApiError
from openai_bls.protocol.responses import encode

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


class EventStream(Response):
    """The sink of a streamed generation and the response that sends it.

    One coroutine for each connection sleeps until there is something to send and sends all there is: no task, timer or
    queue entry a token.

    Args:
        keep_alive_interval_s: a comment is sent after so many seconds of silence.
    """

    def __init__(self, keep_alive_interval_s: float) -> None:
        super().__init__(
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
        # The length is not known; Starlette has set it to that of the empty body.
        del self.headers["content-length"]
        self._interval = keep_alive_interval_s
        self._pending: list[bytes] = []
        self._ended = False
        self._error: ApiError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.on_disconnect: Callable[[], None] = lambda: None

    def write(self, chunk: bytes) -> None:
        """One event."""
        self._pending.append(chunk)
        self._wake()

    def end(self) -> None:
        """The stream is complete."""
        self._pending.append(DONE)
        self._ended = True
        self._wake()

    def fail(self, error: ApiError) -> None:
        """An error event; as the first of a stream it becomes the response's status instead."""
        self._error = error
        self._pending += (b"data: " + encode(error.body()) + b"\n\n", DONE)
        self._ended = True
        self._wake()

    async def first(self) -> ApiError | None:
        """Wait for the first event, or for the keep-alive interval; the error, if that is what came first."""
        try:
            if not self._pending:
                await self._wait()
        except asyncio.CancelledError:
            self.on_disconnect()
            raise
        if self._error is not None and len(self._pending) == 2:
            return self._error
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the end, or until the client goes away."""
        sender = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(disconnected(receive))
        try:
            await asyncio.wait((sender, gone), return_when=asyncio.FIRST_COMPLETED)
            if sender.done():
                sender.result()
        finally:
            # Harmless if the stream is complete.
            self.on_disconnect()
            sender.cancel()
            gone.cancel()

    async def _send(self, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        while True:
            if not self._pending:
                await self._wait()
            if not self._pending:
                self._pending.append(KEEP_ALIVE)
            body = b"".join(self._pending)
            self._pending.clear()
            more = not self._ended
            await send({"type": "http.response.body", "body": body, "more_body": more})
            if not more:
                return

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def _wait(self) -> None:
        """Until there is something to send, or the interval is over."""
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        # A bare timer is a third of the cost of asyncio.wait_for, which this is once a step and stream.
        timer = loop.call_later(self._interval, _expire, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiter = None


def _expire(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def disconnected(receive: Receive) -> None:
    """Wait until the client has gone; what it sends meanwhile is dropped."""
    while (await receive())["type"] != "http.disconnect":
        pass
