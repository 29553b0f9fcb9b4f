"""Restart policy of an engine's process: when it is started again after it was lost, and when no more."""

from __future__ import annotations

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
STEADY_S = 60.0
"""Seconds that a process must have served for the next delay to be the first again."""


class RestartPolicy:
    """Delays between starts: they double from `FIRST_DELAY_S` to `LONGEST_DELAY_S`.

    Args:
        limit: number of starts in a row that may fail; None is no limit.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._failed = 0
        self._delay_s = FIRST_DELAY_S

    @property
    def endless(self) -> bool:
        """True if there is no limit."""
        return self._limit is None

    def lost(self, served_s: float) -> float | None:
        """Seconds to wait before the next start, after a process that was ready has been lost.

        Args:
            served_s: seconds that it was ready.

        Returns:
            None if it is not started again.
        """
        self._failed = 0
        if served_s >= STEADY_S:
            self._delay_s = FIRST_DELAY_S
        return self._next() if self._limit != 0 else None

    def failed(self) -> float | None:
        """Seconds to wait before the next start, after one that has failed; None if it was one too many."""
        self._failed += 1
        return None if self._limit is not None and self._failed >= self._limit else self._next()

    def _next(self) -> float:
        delay, self._delay_s = self._delay_s, min(2 * self._delay_s, LONGEST_DELAY_S)
        return delay
