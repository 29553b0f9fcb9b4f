"""Budgets of API keys: requests at once, requests and tokens per minute, as the limits of each key allow.

A budget per minute is a token bucket that holds a minute's worth and fills steadily. Tokens are taken by what a request
is expected to need when it is admitted, and set right when it has ended, which may leave less than nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from openai_bls.core.errors import RateLimitError
from openai_bls.core.keys.key_limits import KeyLimits
from openai_bls.pipeline.admission.throughput import Mean

_MINUTE_S = 60.0


class Bucket:
    """Token bucket of one kind of budget.

    Args:
        per_minute: capacity of the bucket, and the amount that flows in per minute.
        now: current time in seconds.
    """

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at = now

    def level(self, now: float) -> float:
        """Amount that it holds; below 0 it owes."""
        self._level = min(self.per_minute, self._level + (now - self._at) * self.per_minute / _MINUTE_S)
        self._at = now
        return self._level

    def take(self, amount: float, now: float) -> None:
        """Take `amount` out, whether it is there or not; below 0 is given back."""
        self._level = min(self.level(now) - amount, self.per_minute)

    def seconds_until(self, amount: float, now: float) -> float:
        """Seconds until it holds `amount`."""
        return max(0.0, amount - self.level(now)) * _MINUTE_S / self.per_minute

    def resized(self, per_minute: int, now: float) -> Bucket:
        """A bucket of another size from which as much has been taken."""
        other = Bucket(per_minute, now)
        other.take(self.per_minute - self.level(now), now)
        return other


class KeyBudget:
    """Budget of one key's name."""

    def __init__(self) -> None:
        self.limits: KeyLimits | None = None
        self.requests: Bucket | None = None
        self.tokens: Bucket | None = None
        self.in_progress = 0
        self.seconds = Mean()
        """Mean seconds that a request is in progress."""

    def use(self, limits: KeyLimits, now: float) -> None:
        """Have these limits from now on."""
        if limits is not self.limits:
            self.limits = limits
            self.requests = _sized(self.requests, limits.requests_per_minute, now)
            self.tokens = _sized(self.tokens, limits.tokens_per_minute, now)


class Lease:
    """Part of a key's budget that one request holds.

    Args:
        budget: budget of the request's key; None if the key has no limits.
        clock: gives the time in seconds, like `time.monotonic`.
    """

    __slots__ = ("_began_at", "_budget", "_clock", "_ended", "_taken")

    def __init__(self, budget: KeyBudget | None, clock: Callable[[], float]) -> None:
        self._budget = budget
        self._clock = clock
        self._taken = 0
        self._ended = False
        if budget is not None:
            budget.in_progress += 1
            self._began_at = clock()

    def take_tokens(self, count: int, prompt_tokens: int) -> None:
        """Take the tokens that a request is expected to need.

        Args:
            count: number of tokens.
            prompt_tokens: part of `count` that the request needs for certain.

        Raises:
            RateLimitError: there are not enough.
        """
        bucket = None if self._budget is None else self._budget.tokens
        if bucket is None:
            return
        if prompt_tokens > bucket.per_minute:
            raise RateLimitError(
                f"The request is too large for the API key's {bucket.per_minute} tokens per minute: its prompt has "
                f"{prompt_tokens}.",
                reason="tokens_per_minute",
                kind="tokens",
                retry_after_s=None,
            )
        now = self._clock()
        # What is only expected of the answer must not keep a request out for ever.
        needed = min(count, bucket.per_minute)
        _check_tokens(bucket, needed, now)
        bucket.take(count, now)
        self._taken = count

    def end(self, tokens: int) -> None:
        """Give everything back but the `tokens` that the request has used. Harmless after the first time."""
        budget = self._budget
        if budget is None or self._ended:
            return
        self._ended = True
        now = self._clock()
        budget.in_progress -= 1
        budget.seconds.add(now - self._began_at)
        if budget.tokens is not None:
            budget.tokens.take(tokens - self._taken, now)


class KeyBudgets:
    """Budgets of all keys of one instance. Belongs to the event loop's thread.

    Args:
        limits: gives the limits of a key's name, as they are now.
        clock: seconds, as `time.monotonic`.
    """

    def __init__(self, limits: Callable[[str], KeyLimits], clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._budgets: dict[str, KeyBudget] = {}
        self._none = Lease(None, clock)

    def enter(self, key: str) -> Lease:
        """Begin a request of `key`.

        Raises:
            RateLimitError: it is one too many.
        """
        budget = self._budget(key)
        if budget is None:
            return self._none
        assert budget.limits is not None
        if budget.tokens is not None:
            # What earlier answers have taken beyond what was expected.
            _check_tokens(budget.tokens, 0, self._clock())
        most = budget.limits.max_concurrent_requests
        if most is not None and budget.in_progress >= most:
            raise RateLimitError(
                f"The API key has {budget.in_progress} requests in progress, the most that it may have.",
                reason="concurrent_requests",
                retry_after_s=(budget.seconds.value or 1.0) / most,
            )
        if budget.requests is not None:
            now = self._clock()
            wait_s = budget.requests.seconds_until(1, now)
            if wait_s:
                raise RateLimitError(
                    f"The API key's {budget.requests.per_minute} requests per minute are used up.",
                    reason="requests_per_minute",
                    retry_after_s=wait_s,
                )
            budget.requests.take(1, now)
        return Lease(budget, self._clock)

    def headers(self, key: str) -> dict[str, str]:
        """OpenAI's `x-ratelimit-*` headers with what a key has left."""
        budget = self._budget(key)
        headers: dict[str, str] = {}
        if budget is None:
            return headers
        now = self._clock()
        for kind, bucket in (("requests", budget.requests), ("tokens", budget.tokens)):
            if bucket is not None:
                headers[f"x-ratelimit-limit-{kind}"] = str(bucket.per_minute)
                headers[f"x-ratelimit-remaining-{kind}"] = str(max(0, math.floor(bucket.level(now))))
                headers[f"x-ratelimit-reset-{kind}"] = duration(bucket.seconds_until(bucket.per_minute, now))
        return headers

    def _budget(self, key: str) -> KeyBudget | None:
        """Budget of a key; None if it has no limits, and had none."""
        limits = self._limits(key)
        budget = self._budgets.get(key)
        if budget is None:
            if not (limits.requests_per_minute or limits.tokens_per_minute or limits.max_concurrent_requests):
                return None
            budget = self._budgets[key] = KeyBudget()
        budget.use(limits, self._clock())
        return budget


def duration(seconds: float) -> str:
    """Seconds as OpenAI writes them: `0s`, `120ms`, `8.64s`, `6m0s`."""
    if seconds < 1:
        milliseconds = math.ceil(seconds * 1000)
        return f"{milliseconds}ms" if 0 < milliseconds < 1000 else f"{milliseconds // 1000}s"
    if seconds < _MINUTE_S:
        return f"{seconds:.2f}".rstrip("0").rstrip(".") + "s"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s"


def _check_tokens(bucket: Bucket, needed: int, now: float) -> None:
    wait_s = bucket.seconds_until(needed, now)
    if wait_s:
        raise RateLimitError(
            f"The API key's {bucket.per_minute} tokens per minute are used up: {max(0, int(bucket.level(now)))} are "
            f"left, the request needs about {max(1, needed)}.",
            reason="tokens_per_minute",
            kind="tokens",
            retry_after_s=wait_s,
        )


def _sized(bucket: Bucket | None, per_minute: int | None, now: float) -> Bucket | None:
    if per_minute is None:
        return None
    return Bucket(per_minute, now) if bucket is None else bucket.resized(per_minute, now)
