"""Batcher of writes: streams with something to write are flushed together, at most once per millisecond."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

# Seconds between two batches. A write costs as much for one event as for ten. An engine whose steps are longer never
# waits for this; a faster one, or many catching up, share a write.
_INTERVAL_S = 0.001


class WriteBatcher:
    """Belongs to the event loop's thread. A caller schedules each callback at most once per batch."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: list[Callable[[], None]] = []
        self._last = -_INTERVAL_S

    def schedule(self, flush: Callable[[], None]) -> None:
        """Call `flush` with the next batch: at once if the last one was long enough ago."""
        self._due.append(flush)
        if len(self._due) == 1:
            wait = self._last + _INTERVAL_S - self._loop.time()
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
