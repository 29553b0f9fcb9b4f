"""HTTP connection of uvicorn with direct writes for streams: from an event to the socket without a coroutine.

ASGI costs a coroutine's wake-up, a timer and three calls for each piece of a response. At one piece per step and stream
that is more than the rest of the cost per token. So a stream's head and end go through ASGI, and what lies between them
is written to the transport.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from openai_bls.api.http.connection.bounded_connection import BoundedConnection

# The key of the scope's "extensions" under which a response finds its connection.
EXTENSION = "openai_bls.connection"


class StreamConnection(BoundedConnection):
    """A connection that a response without a length may write to itself, between its head and its end."""

    on_writable: Callable[[], None] | None = None
    """Called when the client has read enough for `writable` to be true again."""
    _on_lost: Callable[[], None] | None = None
    _lost = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._on_read: list[Callable[[], None]] = []

    def on_message_begin(self) -> None:
        """Offer this connection to the response."""
        super().on_message_begin()
        if self._is_replaying:
            return
        extensions: dict[str, Any] = {EXTENSION: self}
        self.scope["extensions"] = extensions

    @property
    def has_client_certificate(self) -> bool:
        """True if the client has shown a certificate of one of `ssl_ca_certs`; any other ends its handshake."""
        return bool(self.transport.get_extra_info("peercert"))

    @property
    def writable(self) -> bool:
        """False while the client does not read what has been written, and once it has gone."""
        return not (self.flow.write_paused or self.transport.is_closing())

    def write_chunk(self, body: bytes) -> None:
        """One chunk of the transfer encoding, which HTTP/1.0 does not have; `body` is not empty."""
        is_framed = self.scope["http_version"] != "1.0"
        self.gathering.write_now(b"%x\r\n%b\r\n" % (len(body), body) if is_framed else body)

    def when_read(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the client has read most of what was written, or has gone."""
        self.gathering.flush()
        self._on_read.append(callback)
        if not self.flow.write_paused or self._lost:
            self._tell_read()

    async def break_off(self) -> None:
        """Close the connection in the middle of a body, once its client has read what was written."""
        lost = asyncio.Event()
        self.when_lost(lost.set)
        if self.writable:
            self.transport.close()
        else:
            # It reads slowly, or not at all.
            self.transport.abort()
        await lost.wait()

    def when_lost(self, callback: Callable[[], None] | None) -> None:
        """Call `callback` once, if the client goes away; None calls nothing. For a request whose body has been read."""
        self._on_lost = callback
        if self._lost:
            self.loop.call_soon(self._tell_lost)
        else:
            # A large body has paused it, and an end that is not read is not seen.
            self.flow.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        super().connection_lost(exc)
        self._lost = True
        self._tell_read()
        self._tell_lost()

    def _tell_lost(self) -> None:
        callback, self._on_lost = self._on_lost, None
        if callback is not None:
            callback()

    def _tell_read(self) -> None:
        callbacks, self._on_read = self._on_read, []
        for callback in callbacks:
            callback()

    def resume_writing(self) -> None:
        """Called by the transport when its buffer has drained."""
        super().resume_writing()
        self._tell_read()
        if self.on_writable is not None:
            self.on_writable()
