"""Writes together: what has something to write is called once a turn, and a turn is at most every millisecond."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

# A write costs as much for one event as for ten. An engine whose steps are longer never waits for this; a faster one,
# or many catching up, share a write.
_TURN_S = 0.001


class WriteBatcher:
    """Belongs to the event loop's thread. At most one call of each callback a turn is its caller's business."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: list[Callable[[], None]] = []
        self._last = -_TURN_S

    def schedule(self, flush: Callable[[], None]) -> None:
        """Have `flush` called with the next turn, which is at once if the last was long enough ago."""
        self._due.append(flush)
        if len(self._due) == 1:
            wait = self._last + _TURN_S - self._loop.time()
            if wait <= 0:
                self._loop.call_soon(self.run)
            else:
                self._loop.call_later(wait, self.run)

    def run(self) -> None:
        """Call what is due now."""
        due, self._due = self._due, []
        self._last = self._loop.time()
        for flush in due:
            try:
                flush()
            except Exception:
                # One stream's failure is not the others'.
                logger.exception("a stream could not be written")
