"""Bound of what waits for a client that reads slowly, while a model that nothing makes wait goes on."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from openai_bls.core.errors import OverloadedError

MAX_UNREAD_BYTES = 16 * 1024 * 1024
"""Bytes of a stream that may wait for its client."""


class Sink(Protocol):
    """Sink that says how much it has still to pass on."""

    @property
    def unread(self) -> int:
        """Chunks that wait for the client."""


class Unread:
    """Bytes of a stream of another model that a sink has not passed on yet.

    Args:
        sink: sink of the stream.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._sizes: deque[int] = deque()
        self._bytes = 0

    def add(self, size: int) -> None:
        """Count a chunk that is about to be written.

        Raises:
            OverloadedError: too much waits.
        """
        while len(self._sizes) > self._sink.unread:
            self._bytes -= self._sizes.popleft()
        self._sizes.append(size)
        self._bytes += size
        if self._bytes > MAX_UNREAD_BYTES and len(self._sizes) > 1:
            raise OverloadedError("The answer was cut off: its client reads too slowly.", code="client_too_slow")
