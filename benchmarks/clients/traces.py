"""Requests of one run as a client makes them: handed out, carried out some at a time, timed, given up."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from array import array
from collections.abc import Awaitable, Callable
from itertools import cycle

from benchmarks.clients.target import Asked, Plan

_WATCH_INTERVAL_S = 1.0


class Trace:
    """One request as the client saw it. Times are seconds of the monotonic clock."""

    __slots__ = ("counts", "ended", "failure", "head", "output_tokens", "started", "tail", "times")

    def __init__(self, started: float, output_tokens: int | None = None) -> None:
        self.output_tokens = output_tokens
        """Tokens that it asked for; None: as many as the plan says."""
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


class RequestError(Exception):
    """A request failed; the message says how. The next one may be made."""


Carry = Callable[[bytes, Trace], Awaitable[None]]
"""Makes one request and fills its trace, after others on the same connection; raises `RequestError`."""


class Run:
    """One run of `plan`.

    Args:
        plan: how many requests, for how long.
        requests: with the bytes to send; in turn, again and again, or each once if the plan is an open loop.
    """

    def __init__(self, plan: Plan, requests: list[Asked]) -> None:
        self.plan = plan
        self._most = plan.requests if plan.arrivals is None else len(requests)
        self.workers = min(plan.concurrency, self._most)
        self.last_data = math.inf
        """When a client last heard anything; clients set it."""
        self._traces: list[Trace] = []
        self._open: dict[asyncio.Task[None], Trace] = {}
        self._requests = cycle(requests)
        self._rng = random.Random(plan.seed)
        self._begin = 0.0
        self._begun = 0
        self._until = math.inf

    async def carry_out(self, carriers: list[Carry]) -> list[Trace]:
        """Make all requests, one at a time by each of `carriers`.

        Raises:
            OSError: the server cannot be reached any more.
        """
        self.last_data = self._begin = time.monotonic()
        if self.plan.seconds is not None:
            self._until = self.last_data + self.plan.seconds
        tasks = [asyncio.ensure_future(self._work(carry)) for carry in carriers]
        watch = asyncio.ensure_future(self._watch())
        try:
            await asyncio.gather(*tasks)
        finally:
            watch.cancel()
        return self._traces

    def _take(self) -> Asked | None:
        """The next request, or None if there is no more."""
        if self._begun >= self._most or (self._begun >= self.workers and time.monotonic() > self._until):
            return None
        self._begun += 1
        return next(self._requests)

    async def _work(self, carry: Carry) -> None:
        task = asyncio.current_task()
        assert task is not None
        while (asked := self._take()) is not None:
            started = await self._moment(asked)
            trace = self._open[task] = Trace(started, asked.output_tokens)
            try:
                await carry(asked.body, trace)
            except RequestError as error:
                trace.failure = str(error)
            except asyncio.CancelledError:
                trace.failure = self._stalled() or "incomplete: timed out"
            trace.ended = time.monotonic()
            del self._open[task]
            self._traces.append(trace)
            if self.plan.pause_s:
                await asyncio.sleep(self.plan.pause_s * self._rng.uniform(0.5, 1.5))

    async def _moment(self, asked: Asked) -> float:
        """When a request begins: in an open loop its own moment, whether or not a connection was free then."""
        if self.plan.arrivals is None:
            return time.monotonic()
        due = self._begin + asked.at_s
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        return due

    def _stalled(self) -> str:
        """The failure of open requests if nothing at all has come for too long; else an empty string."""
        limit = self.plan.stall_s
        return f"incomplete: no data for {limit:g} s" if time.monotonic() - self.last_data > limit else ""

    async def _watch(self) -> None:
        """Give up on requests that take too long; one timer for all."""
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                await asyncio.sleep(_WATCH_INTERVAL_S)
                stalled = self._stalled()
                if stalled:
                    self._most = self._begun
                too_old = time.monotonic() - self.plan.timeout_s
                for task, trace in list(self._open.items()):
                    if stalled or trace.started < too_old:
                        task.cancel()
