"""Server-sent event stream on one connection, buffered while the client does not read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from openai_bls.api.common.encoding import encode
from openai_bls.api.common.events.event_sink import TextEncoder
from openai_bls.api.http.body_budget import UnreadBytes
from openai_bls.api.http.connection.stream_connection import EXTENSION, StreamConnection
from openai_bls.api.http.disconnect import resolve, unless_gone
from openai_bls.api.http.write_batcher import WriteBatcher
from openai_bls.core.errors import ApiError, OverloadedError
from openai_bls.core.usage import Usage

logger = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
# Without a blank line, which would end an event: openai-go before 3.43 takes one after a comment for an empty event.
KEEP_ALIVE = b": keep-alive\n"
"""A comment, which belongs to the event that comes next and changes nothing of it."""
_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class EventStream(Response):
    """The sink of a streamed generation and the response that sends it.

    All events of one turn of the write batcher are written at once, straight to the connection where the server offers
    it (see `stream_connection`), else through ASGI. No task, timer or coroutine per token.

    Args:
        keep_alive_interval_s: seconds of silence after which `keep_alive` is sent.
        write_batcher: schedules the writes.
        ending: bytes to write after the last event.
        keep_alive: a comment line, or an event that the API has for silence.
        unread: count of what the client has not read, which is cut off where there is no room for it; None is none.
    """

    sse = True
    # Later, an error before the first token can still have its own status.
    opens_at_once = False
    _is_cut = False
    """The body lacks its end, which is all that tells its client of an error."""

    def __init__(
        self,
        keep_alive_interval_s: float,
        write_batcher: WriteBatcher,
        *,
        ending: bytes = DONE,
        keep_alive: bytes = KEEP_ALIVE,
        unread: UnreadBytes | None = None,
    ) -> None:
        # Not Starlette's, which works the headers out anew for each stream, with the length of an empty body.
        self.status_code, self.background, self.body = 200, None, b""
        self.raw_headers = [*_HEADERS]
        self.interval_s = keep_alive_interval_s
        """Seconds of silence after which it is broken."""
        self._ending = ending
        self._silence = keep_alive
        self._write_batcher = write_batcher
        self._pending: list[bytes] = []
        self._unread = unread
        self._counted = 0
        """Number of pending events that are counted as not read."""
        self._ended = False
        self._error: ApiError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._connection: StreamConnection | None = None
        self._flush_scheduled = False
        self._written_at = 0.0
        self.on_disconnect: Callable[[], object] = lambda: None

    @property
    def unread(self) -> int:
        """Events that wait for the client."""
        return len(self._pending)

    def begin(self, encoder: TextEncoder) -> None:
        """Write text with `encoder`."""
        self._encode_text = encoder.text

    def text(self, index: int, text: str, usage: Usage | None) -> None:
        """A piece of text of choice `index`: one event."""
        self._pending.append(self._encode_text(index, text, usage))
        self._wake()

    def write(self, chunk: bytes) -> None:
        """One event."""
        self._pending.append(chunk)
        self._wake()

    def end(self) -> None:
        """The stream is complete."""
        self._pending.append(self._ending)
        self._ended = True
        self._wake()

    def fail(self, error: ApiError, event: bytes | None = None) -> None:
        """An error event, OpenAI's unless given; as the first of a stream it becomes the response's status instead."""
        self._error = error
        self._pending += (event or b"data: " + encode(error.body()) + b"\n\n", self._ending)
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
        connection = scope.get("extensions", {}).get(EXTENSION)
        try:
            if connection is None:
                await unless_gone(receive, self._send(send))
            else:
                await self._send(send, connection)
        except ClientDisconnect:
            pass
        finally:
            # Harmless if the stream is complete.
            self.on_disconnect()
            if self._unread is not None:
                self._unread.give_back()

    async def _send(self, send: Send, connection: StreamConnection | None = None) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if connection is not None:
            await self._write_to(connection)
            if not self._ended:
                return
        while True:
            if not self._pending and not self._ended:
                await self._wait()
            if not self._pending and not self._ended:
                self._pending.append(self._silence)
            body = b"".join(self._pending)
            self._pending.clear()
            is_last = self._ended
            is_cut = is_last and self._is_cut
            await send({"type": "http.response.body", "body": body, "more_body": not is_last or is_cut})
            if is_cut and connection is not None:
                await connection.break_off()
            if is_last:
                return

    async def _write_to(self, connection: StreamConnection) -> None:
        """Let `_flush` write to the connection until the last events, which are left to the caller, or its end."""
        self._loop = asyncio.get_running_loop()
        self._last_events = self._loop.create_future()
        self._connection = connection
        connection.on_writable = self._flush
        connection.when_lost(self._resume)
        self._written_at = self._loop.time()
        self._timer = self._loop.call_later(self.interval_s, self._keep_alive)
        try:
            self._flush()
            await self._last_events
        finally:
            self._connection = connection.on_writable = None
            connection.when_lost(None)
            self._timer.cancel()

    def _flush(self) -> None:
        """Write what is pending; if the client does not read, the connection calls again when it does."""
        self._flush_scheduled = False
        connection = self._connection
        if connection is None:
            return
        if self._ended:
            self._resume()
        elif self._pending and connection.writable:
            body = b"".join(self._pending)
            self._pending.clear()
            connection.write_chunk(body)
            self._written_at = self._loop.time()
            if self._counted and self._unread is not None:
                self._unread.give_back()
                self._counted = 0
        elif self._pending and not connection.transport.is_closing():
            self._count_unread(connection)

    def _count_unread(self, connection: StreamConnection) -> None:
        """Count what waits for the client; end the stream if there is no room for it."""
        size = sum(map(len, self._pending[self._counted :]))
        self._counted = len(self._pending)
        if self._unread is not None:
            try:
                self._unread.take(size)
            except OverloadedError:
                logger.info("a stream is cut off: its client does not read, and there is no room for more")
                connection.transport.abort()

    def _resume(self) -> None:
        resolve(self._last_events)

    def _keep_alive(self) -> None:
        """Break the silence, if there is one. One timer an interval, not one an event."""
        silence = self._loop.time() - self._written_at
        left = self.interval_s - silence
        if left <= 0:
            left = self.interval_s
            if not self._pending:
                self.write(self._silence)
        self._timer = self._loop.call_later(left, self._keep_alive)

    def _wake(self) -> None:
        if self._connection is not None:
            if not self._flush_scheduled:
                self._flush_scheduled = True
                self._write_batcher.schedule(self._flush)
        elif self._waiter is not None:
            resolve(self._waiter)

    async def _wait(self) -> None:
        """Until there is something to send, or the interval is over."""
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = loop.call_later(self.interval_s, resolve, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiter = None
