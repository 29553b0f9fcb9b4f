"""Warnings that somebody else can cause as often as they like, written at most once in a while."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

INTERVAL_S = 10.0
"""Seconds from one line to the next."""


class LimitedWarnings:
    """Warnings of one kind. From any thread.

    Args:
        logger: logger that writes them.
        clock: monotonic clock, in seconds.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._lock = threading.Lock()
        self._next_at = float("-inf")
        self._left_out = 0

    def write(self, text: str, *values: object) -> None:
        """Write a warning, or count it for the next line."""
        with self._lock:
            now = self._clock()
            if now < self._next_at:
                self._left_out += 1
                return
            self._next_at = now + INTERVAL_S
            left_out, self._left_out = self._left_out, 0
        if left_out:
            text += " (and %d like it since the last such line)"
            values = (*values, left_out)
        self._logger.warning(text, *values)
