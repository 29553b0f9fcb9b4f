"""Transports of a connection of /v1: what writes gathered, what a response may do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import groupby

_LARGE_BYTES = 64 * 1024


class GatheringTransport:
    """Transport of a connection: what is written in one turn of the event loop goes out together.

    The head of a response and its first bytes are two writes of uvicorn; a system call, and a client that wakes up for
    it, cost more than either.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._gathered: list[bytes] = []
        self.is_closing = transport.is_closing
        self.get_extra_info = transport.get_extra_info
        self.can_write_eof = transport.can_write_eof
        self.abort = transport.abort

    def write(self, data: bytes) -> None:
        """Write at the end of this turn, or with the next `write_now`."""
        self._gathered.append(data)
        if len(self._gathered) == 1:
            self._loop.call_soon(self.flush)

    def write_now(self, data: bytes) -> None:
        """Write, after what has been gathered."""
        if self._gathered:
            self._gathered.append(data)
            self.flush()
        else:
            self._send(data)

    def write_eof(self) -> None:
        """End this side of the connection."""
        self.flush()
        self._transport.write_eof()

    def close(self) -> None:
        """Close the connection once everything is written."""
        self.flush()
        self._transport.close()

    def flush(self) -> None:
        """Write what has been gathered. A large piece is not copied: it may be an answer that many clients have."""
        gathered, self._gathered = self._gathered, []
        for is_large, pieces in groupby(gathered, lambda data: len(data) > _LARGE_BYTES):
            for data in pieces if is_large else (b"".join(pieces),):
                self._send(data)

    def _send(self, data: bytes) -> None:
        # The client may have gone since it was written, and uvloop takes nothing for a connection that is no more.
        if not self._transport.is_closing():
            self._transport.write(data)


class ResponseTransport:
    """Transport as a response uses it: closing waits until the client has read."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close
