"""Slices of received bytes, bounded by what parsing them costs, and their turns at the event loop.

Each piece of HTTP ends a line: the first line of a message, a header, the size of a chunk, a chunk, a trailer. So the
line ends of some bytes bound the callbacks of a parser, whatever the pieces are. httptools takes no line that ends
without a carriage return, which JSON text hardly ever has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from openai_bls.core.keys.turns import KeyQueue

FEW_LINES = 64
"""Lines that are parsed at once: no more than an ordinary request has."""
SLICE_LINES = 1024
"""Lines at which a slice ends: a fraction of a millisecond of a parser."""
STEP_BYTES = 2048
"""Bytes by which a slice grows until it has so many lines."""
MAX_SLICE_LINES = SLICE_LINES + STEP_BYTES
"""Lines of a slice, were each byte of its last step one."""
_LINE_END = b"\r"


def has_few_lines(data: bytes) -> bool:
    """True if `data` is parsed at once rather than in slices."""
    if len(data) <= STEP_BYTES:
        return data.count(_LINE_END) <= FEW_LINES
    # The search passes over long content ten times faster than counting does.
    at = -1
    for _ in range(FEW_LINES + 1):
        at = data.find(_LINE_END, at + 1)
        if at < 0:
            return True
    return False


def slice_end(data: bytes, start: int) -> int:
    """End of the slice of `data` that begins at `start`; it has at most MAX_SLICE_LINES lines."""
    end, lines = start, 0
    while end < len(data) and lines < SLICE_LINES:
        lines += data.count(_LINE_END, end, end + STEP_BYTES)
        end += STEP_BYTES
    return min(end, len(data))


class Turns:
    """Queue of work that comes in slices: a turn of the event loop does one slice. The keys take turns, and of a key
    whoever waits longest.

    Belongs to the event loop's thread.
    """

    def __init__(self) -> None:
        self._waiting: KeyQueue[tuple[str, Callable[[], bool]]] = KeyQueue()
        self._is_scheduled = False

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, work: Callable[[], bool], key: str = "") -> None:
        """Call `work` in a separate turn of `key`, and again as long as it returns True."""
        self._waiting.push(key, (key, work))
        self._schedule()

    async def wait(self) -> None:
        """Wait for a turn."""
        turn = asyncio.get_running_loop().create_future()

        def begin() -> bool:
            if not turn.done():
                turn.set_result(None)
            return False

        self.take(begin)
        await turn

    def _schedule(self) -> None:
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        found = self._waiting.pop()
        assert found is not None
        key, work = found
        try:
            if work():
                self._waiting.push(key, found)
        finally:
            self._schedule()
