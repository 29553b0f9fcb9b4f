"""Measured throughput of an engine, from which waiting times are estimated."""

from __future__ import annotations

import math

MEMORY_S = 10.0
"""Seconds of waiting after which a measurement counts 1/e of a new one."""
_MEMORY_REQUESTS = 64


class DrainRate:
    """Rate at which a queue moves on, in tokens per second of waiting: times at which nothing waits do not count."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0
        self._since: float | None = None
        """Time of the last measurement; None while nothing waits."""

    @property
    def tokens_per_s(self) -> float | None:
        """The rate; None if it is not known yet."""
        return self._tokens / self._seconds if self._seconds > 0 and self._tokens > 0 else None

    def begin(self, now: float) -> None:
        """Something begins to wait."""
        self._since = now

    def moved(self, now: float, tokens: int, *, more: bool) -> None:
        """Items of `tokens` have left the front of the queue, in which there is `more` or nothing."""
        if self._since is not None:
            passed = now - self._since
            kept = math.exp(-passed / MEMORY_S)
            self._seconds = self._seconds * kept + passed
            self._tokens = self._tokens * kept + tokens
        self._since = now if more else None


class Mean:
    """Mean of the last few values, the latest of which count most."""

    def __init__(self) -> None:
        self.value: float | None = None
        """None if there is none yet."""

    def add(self, value: float) -> None:
        """Count a value."""
        self.value = value if self.value is None else self.value + (value - self.value) / _MEMORY_REQUESTS
