"""Watch of the event loop: how long it stands, when all requests wait for one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from openai_bls.pipeline.observation.observer import Observer

logger = logging.getLogger(__name__)

INTERVAL_S = 0.05
"""Seconds between two looks."""
SHORTEST_STALL_S = 0.01
"""Seconds from which on a stall is counted."""
LOGGED_STALL_S = 0.25
"""Seconds from which on a stall is logged."""


class EventLoopWatch:
    """Watch of the running event loop, by how late one of its timers is.

    Args:
        observer: knows the endpoints that are at work.
        on_stall: called with the seconds of each stall from `SHORTEST_STALL_S` on.
        clock: seconds, as `time.monotonic`.
    """

    def __init__(
        self, observer: Observer, on_stall: Callable[[float], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._observer = observer
        self._on_stall = on_stall
        self._clock = clock

    async def run(self) -> None:
        """Watch until cancelled."""
        self._schedule()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._timer.cancel()

    def _schedule(self) -> None:
        # A timer, no task that sleeps: each of its looks would take two turns of the loop.
        loop, due = asyncio.get_running_loop(), self._clock() + INTERVAL_S
        self._timer = loop.call_later(INTERVAL_S, self._look, due, time.process_time())

    def _look(self, due: float, cpu_s: float) -> None:
        """Tell of a stall, if this comes late.

        Args:
            due: time at which it was due.
            cpu_s: CPU time of the process when it was scheduled.
        """
        stall_s = self._clock() - due
        endpoints = self._observer.take_endpoints()
        self._schedule()
        if stall_s < SHORTEST_STALL_S:
            return
        self._on_stall(stall_s)
        if stall_s >= LOGGED_STALL_S:
            # Little CPU time says that it was the machine that had none.
            logger.warning(
                "the event loop stood for %.2f s (%.2f s of CPU time) with these endpoints at work: %s",
                stall_s,
                time.process_time() - cpu_s,
                ", ".join(endpoints) or "none",
            )
