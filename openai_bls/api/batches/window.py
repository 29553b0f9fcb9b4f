"""Window of requests in flight: as many as the server has had room for, since it refused one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

_WIDE = 1024
"""Requests in flight from which on a window does not limit anything any more."""


class Window:
    """Bound of the requests in flight of a key, or of a batch; belongs to the event loop.

    Args:
        retry_s: time until the window grows after a refusal, in seconds: at first, and at most.
        grown: called when the window has grown.
    """

    def __init__(self, retry_s: tuple[float, float], grown: Callable[[], None]) -> None:
        self.most = math.inf
        """Number of requests that may be in flight; infinite without a bound."""
        self._first_s, self._last_s = retry_s
        self._grown = grown
        self._wait_s = 0.0
        """Time of the wait after the last refusal, in seconds; 0 if the window has grown twice since then."""
        self._has_grown = True
        self._timer: asyncio.TimerHandle | None = None

    def refused(self, others: int) -> None:
        """Shrink the window to the requests for which there was room.

        Args:
            others: number of requests in flight without the one that was refused.
        """
        self.most = others
        if self._has_grown:
            self._has_grown = False
            self._wait_s = min(2 * self._wait_s, self._last_s) or self._first_s
            self._start(self._wait_s)

    def close(self) -> None:
        """Grow no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _start(self, wait_s: float) -> None:
        self.close()
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._grow)

    def _grow(self) -> None:
        if self._has_grown:
            self._wait_s = 0.0
        self._has_grown = True
        self.most = max(1, 2 * self.most)
        if self.most < _WIDE:
            self._start(self._wait_s or self._first_s)
        else:
            self.most = math.inf
        self._grown()
