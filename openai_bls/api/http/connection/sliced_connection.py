"""Reading of a connection in slices, so that a turn of the event loop parses one slice of one connection.

The event loop reads up to 256 KiB at once, which may be 40,000 chunks. What may be many pieces waits for its turns
while nothing more is read; an ordinary request, and the content of a body with a declared length, are parsed at once.
With TLS each read waits for a turn: the event loop would read on as long as there are bytes, and to take 256 KiB of
small records apart takes some 30 ms.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, cast

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from openai_bls.pipeline.slices import Turns, has_few_lines, slice_end

MAX_DISCARDED_BYTES = 64 * 1024 * 1024
"""Bytes of a connection that are read and thrown away after its last request, so that a client that sends all before
it reads gets its answer."""


class HeldFlow(FlowControl):
    """Flow control with a second reason to read nothing: what has been read waits to be parsed."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._is_held = False
        self._is_pausing = False

    def pause_reading(self) -> None:
        """Pause reading until the request wants more."""
        self._is_pausing = True
        super().pause_reading()

    def resume_reading(self) -> None:
        """A request wants more."""
        self._is_pausing = False
        if not self._is_held:
            super().resume_reading()

    def hold(self) -> None:
        """Pause until `release`."""
        self._is_held = True
        super().pause_reading()

    def release(self) -> None:
        """Everything has been parsed, or is not going to be."""
        self._is_held = False
        if not self._is_pausing:
            super().resume_reading()


class SlicedConnection(HttpToolsProtocol):
    """Connection that hands what it receives to `parse`, slice by slice, until `stop_parsing`.

    Args:
        turns: queue of all connections of the event loop.
    """

    def __init__(self, *args: Any, turns: Turns, **options: Any) -> None:
        super().__init__(*args, **options)
        self._turns = turns
        self._is_queued = False
        self._unparsed: deque[bytes] = deque()
        self._parsed_bytes = 0
        """Bytes of the first of them that have been parsed."""
        self._content_left = 0
        """Bytes of content that are still to come of a body with a declared length."""
        self._deaf = False
        """Bytes that come are no longer parsed."""
        self._discarded_bytes = 0

    def parse(self, data: bytes | memoryview) -> None:
        """Feed the parser with the next bytes."""
        raise NotImplementedError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection over."""
        super().connection_made(cast("asyncio.Transport", transport))
        self.flow = self._held_flow = HeldFlow(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget what has not been parsed."""
        self._unparsed.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse a little at once, and the rest in turns."""
        if self._deaf:
            self._discard(len(data))
        elif not self._unparsed and (len(data) <= self._content_left or has_few_lines(data)):
            self.parse(data)
        else:
            self._unparsed.append(data)
            self._wait_for_turn()
        if self.scheme == "https":
            # What came may be ten thousand records of TLS, which OpenSSL has taken apart in this turn.
            self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        """Read nothing until it is this connection's turn."""
        self._held_flow.hold()
        if not self._is_queued:
            self._is_queued = True
            self._turns.take(self._parse_slice)

    def stop_parsing(self) -> None:
        """Throw away what waits, and what comes."""
        self._deaf = True
        for data in self._unparsed:
            self._discarded_bytes += len(data)
        self._unparsed.clear()
        self._held_flow.release()

    def _parse_slice(self) -> bool:
        """Parse the next slice; True if there are more."""
        self._is_queued = False
        if not self._unparsed:
            if not self.transport.is_closing():
                self._held_flow.release()
            return False
        data, start = self._unparsed[0], self._parsed_bytes
        end = max(slice_end(data, start), min(start + self._content_left, len(data)))
        self._parsed_bytes = end
        if end == len(data):
            self._unparsed.popleft()
            self._parsed_bytes = 0
        try:
            self.parse(memoryview(data)[start:end])
        except Exception:
            # As the event loop does where reading fails.
            self.transport.abort()
            raise
        self._is_queued = bool(self._unparsed)
        if not self._is_queued:
            self._held_flow.release()
        return self._is_queued

    def _discard(self, size: int) -> None:
        self._discarded_bytes += size
        if self._discarded_bytes > MAX_DISCARDED_BYTES:
            self.transport.abort()
