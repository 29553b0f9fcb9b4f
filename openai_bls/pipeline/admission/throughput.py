"""Measured throughput and service time of an engine, from which it is estimated when an answer would come."""

from __future__ import annotations

import math
from collections import defaultdict

MEMORY_S = 10.0
"""Seconds of waiting after which a measurement counts 1/e of a new one."""
_MEMORY_REQUESTS = 64
_USUAL, _MOST = 0.6, 0.9
"""Shares of requests for which an estimate is enough."""
_QUANTILE_STEP = 0.1
"""Share by which an estimate moves at the most with one value."""
_TREND_SPREAD = 0.05
"""Share of their mean by which points must differ to tell a slope."""
_EXPECTED_TOKENS = 64
"""Tokens that an answer is expected to have as long as none has been seen."""
_SHARE_PER_STEP = 1 / 8
"""Share of the sequences that is expected to end in a step as long as none has."""


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
            # However long it stood still, that counts as one memory of it, and is forgotten as fast.
            self._seconds = self._seconds * kept + MEMORY_S * (1 - kept)
            self._tokens = self._tokens * kept + tokens
        self._since = now if more else None


class Mean:
    """Mean of the last few values, the latest of which count most."""

    def __init__(self) -> None:
        self.value: float | None = None
        """Mean of the values; None if there is none yet."""

    def add(self, value: float) -> None:
        """Count a value."""
        self.value = value if self.value is None else self.value + (value - self.value) / _MEMORY_REQUESTS


class Quantile:
    """Running estimate of a quantile of positive values, which moves by steps in proportion to itself.

    Args:
        share: share of the values that lie below the estimate, 0 to 1.
    """

    def __init__(self, share: float) -> None:
        self._up = 1 + _QUANTILE_STEP * share
        self._down = 1 - _QUANTILE_STEP * (1 - share)
        self.value = 0.0
        """0 if there is none yet."""

    def add(self, value: float, *, whole: bool = True) -> None:
        """Count a value, or, if it is not the `whole`, what it is at least."""
        if value > self.value:
            self.value = min(value, self.value * self._up) or value
        elif whole:
            self.value = max(value, self.value * self._down)


class Trend:
    """Line through the last few points, the latest of which count most: not below 0, not falling."""

    def __init__(self) -> None:
        self._x = self._y = self._variance = self._covariance = 0.0

    def add(self, x: float, y: float) -> None:
        """Count a point; both are above 0."""
        if not self._x:
            self._x, self._y = x, y
        x, y = x - self._x, y - self._y
        self._x += x / _MEMORY_REQUESTS
        self._y += y / _MEMORY_REQUESTS
        self._variance += (x * x - self._variance) / _MEMORY_REQUESTS
        self._covariance += (x * y - self._covariance) / _MEMORY_REQUESTS

    def at(self, x: float) -> float:
        """Value of the line at `x`; 0 if there is no point yet."""
        if not self._x:
            return 0.0
        # Points that are all in one place tell no slope. Then it goes through 0, which errs most.
        steepest = self._y / self._x
        prior = (_TREND_SPREAD * self._x) ** 2
        slope = (self._covariance + steepest * prior) / (self._variance + prior)
        return self._y + min(max(slope, 0.0), steepest) * (x - self._x)


class ServiceTime:
    """Seconds that an engine takes for a request, from what it has taken for others.

    It learns from requests that were given up as well: from answers alone, which have all been in time, it would never
    learn that an engine has become too slow.
    """

    def __init__(self) -> None:
        self._pace = Trend()
        """Seconds per token after the first, by the sequences that run."""
        self._token_s = Quantile(_MOST)
        self._first_s = (Quantile(_USUAL), Quantile(_MOST))
        self._seconds = Quantile(_USUAL)
        self._tokens: defaultdict[str, tuple[Quantile, Quantile]] = defaultdict(
            lambda: (Quantile(_USUAL), Quantile(_MOST))
        )
        """Quantiles of tokens per sequence, by the name of the API key: how long answers are depends on the client."""

    def add(
        self, key: str, running: float, first_s: float | None, seconds: float, tokens: float, *, done: bool
    ) -> None:
        """Count a request that the engine has had.

        Args:
            key: name of its API key.
            running: sequences that the engine had meanwhile.
            first_s: seconds from submission to the first token; None if there was none.
            seconds: seconds from submission to the end.
            tokens: generated tokens per sequence.
            done: whether the request was answered in full.
        """
        self._seconds.add(seconds, whole=done)
        for first in self._first_s:
            first.add(seconds if first_s is None else first_s, whole=done or first_s is not None)
        if first_s is not None and tokens > 1:
            token_s = (seconds - first_s) / (tokens - 1)
            self._token_s.add(token_s)
            self._pace.add(running, token_s)
        if tokens:
            for total in self._tokens[key]:
                total.add(tokens, whole=done)

    def expected_tokens(self, key: str) -> float:
        """Tokens that a sequence of a key is expected to generate, if it may."""
        return self._tokens[key][0].value or _EXPECTED_TOKENS

    def usual_s(self, key: str, running: float, max_tokens: float) -> float:
        """Seconds for a usual request of a key while so many sequences run; 0 if that is not known."""
        return self._first_s[0].value + self._pace.at(running) * min(max_tokens, self._tokens[key][0].value)

    def most_s(self, key: str, max_tokens: float) -> float:
        """Seconds that are enough for most requests of a key; 0 if that is not known."""
        return self._first_s[1].value + self._token_s.value * min(max_tokens, self._tokens[key][1].value)

    def share_per_step(self, running: float, way_s: float) -> float:
        """Share of the sequences that ends, on average, in one step and so many seconds more."""
        seconds = self._seconds.value
        step_s = self._pace.at(running) + way_s
        return step_s / max(seconds, step_s) if seconds else _SHARE_PER_STEP
