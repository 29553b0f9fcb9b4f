"""Requests of one run as clients see them: handed out, timed, counted when they end."""

from __future__ import annotations

import asyncio
import math
import random
import time
from array import array
from itertools import cycle

from benchmarks.target import Plan


class Trace:
    """One request as the client saw it. Times are seconds of the monotonic clock."""

    __slots__ = ("counts", "ended", "failure", "head", "started", "tail", "times")

    def __init__(self, started: float) -> None:
        self.started = started
        self.ended = started
        self.times = array("d")
        """When data came in ..."""
        self.counts = array("L")
        """... and how many events it completed."""
        self.head = b""
        """The first event."""
        self.tail: list[bytes] = []
        """The last events."""
        self.failure = ""

    def add(self, now: float, events: list[bytes], keep: int) -> None:
        """Take the events that came in at `now`; remember the last `keep`."""
        if not self.head and events:
            self.head = events[0]
        self.times.append(now)
        self.counts.append(len(events))
        self.tail = events[-keep:] if len(events) >= keep else (self.tail + events)[-keep:]


class Supply:
    """Hands out the requests that `plan` asks for and knows when all of them have ended.

    Args:
        plan: how many requests, for how long.
        requests: bytes to send, in turn.
    """

    def __init__(self, plan: Plan, requests: list[bytes]) -> None:
        self.plan = plan
        self.traces: list[Trace] = []
        self.workers = min(plan.concurrency, plan.requests)
        self.last_data = math.inf
        """When a client last heard anything; clients set it."""
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requests = cycle(requests)
        self._rng = random.Random(plan.seed)
        self._most = plan.requests
        self._begun = 0
        self._until = math.inf

    def start(self) -> None:
        """The clock starts."""
        self.last_data = time.monotonic()
        if self.plan.seconds is not None:
            self._until = self.last_data + self.plan.seconds

    def more(self) -> bool:
        """Whether another request is to be begun."""
        if self._begun >= self.workers and time.monotonic() > self._until:
            self._most = self._begun
        self._look_for_the_end()
        return self._begun < self._most

    def take(self) -> bytes | None:
        """The next request, or None if there is no more."""
        if not self.more():
            return None
        self._begun += 1
        return next(self._requests)

    def finish(self, trace: Trace) -> None:
        """One request has ended, well or not."""
        self.traces.append(trace)
        self._look_for_the_end()

    def stop(self) -> None:
        """Begin no more requests."""
        self._most = self._begun
        self._look_for_the_end()

    def fail(self, error: Exception) -> None:
        """End the run with `error`."""
        if not self.finished.done():
            self.finished.set_exception(error)

    def stalled(self) -> str:
        """The failure of open requests if nothing at all has come for too long; else an empty string."""
        limit = self.plan.stall_s
        return f"incomplete: no data for {limit:g} s" if time.monotonic() - self.last_data > limit else ""

    def pause_s(self) -> float:
        """Seconds to wait before the next request."""
        return self.plan.pause_s * self._rng.uniform(0.5, 1.5)

    def _look_for_the_end(self) -> None:
        if len(self.traces) == self._most and not self.finished.done():
            self.finished.set_result(None)
