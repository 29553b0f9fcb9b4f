"""Health watch of a loaded model: checks its executor and its progress, discards statistics, passes KV events on.

An executor that dies tells nobody: requests that wait for it would wait for ever. Of a rank on another machine nothing
is seen here but that no step comes any more. Statistics of iterations pile up in this process until they are read.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from openai_bls_tensorrt_llm.installed.api import Api
from openai_bls_tensorrt_llm.installed.interface import Llm

logger = logging.getLogger(__name__)

EXECUTOR_ENDED = "TensorRT-LLM's executor has ended"
NO_STEP = "TensorRT-LLM has requests and brings no step any more: look for a rank that has ended or hangs"

WATCH_S = 1.0
"""Seconds between two checks."""
STALL_S = 120.0
"""Seconds without a step after which an executor is lost that has answered one of the running requests. A step that
reads other requests' prompts ahead of the next token has at most `max_num_tokens` tokens: seconds."""
FIRST_STALL_S = 1800.0
"""Seconds without a step while no running request has had a token: nothing tells a long prompt, or kernels that are
tuned for the first time, from an executor that is lost."""


class Progress(NamedTuple):
    """Progress of an engine, as it is now."""

    steps: int
    """Outputs that have come since the start."""
    running: int
    """Requests that TensorRT-LLM has."""
    answered: bool
    """Whether one of them has had a token."""


class ProgressWatch:
    """Tells an executor that has stopped from one that is slow.

    Args:
        clock: seconds, of any beginning.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._steps = 0
        self._since: float | None = None

    def stalled(self, progress: Progress) -> bool:
        """True if requests run and no step has come for too long."""
        now = self._clock()
        if not progress.running:
            self._since = None
            return False
        if self._since is None or progress.steps != self._steps:
            self._steps, self._since = progress.steps, now
            return False
        return now - self._since >= (STALL_S if progress.answered else FIRST_STALL_S)


class HealthWatch:
    """Belongs to an event loop, where everything happens."""

    def __init__(
        self,
        api: Api,
        llm: Llm,
        loop: asyncio.AbstractEventLoop,
        *,
        progress: Callable[[], Progress],
        on_death: Callable[[str], None],
        on_kv_events: Callable[[list[Any]], None] = lambda events: None,
    ) -> None:
        """Watch an executor.

        Args:
            api: the installed TensorRT-LLM.
            llm: the loaded model.
            loop: loop that everything runs on.
            progress: tells what runs and what has come.
            on_death: called once, with what is the matter: the executor has ended, or brings no step any more.
            on_kv_events: called with the KV events of each reading.
        """
        self._api = api
        self._llm = llm
        self._loop = loop
        self._progress = progress
        self._progress_watch = ProgressWatch()
        self._on_death = on_death
        self._on_kv_events = on_kv_events
        self._used = False
        self._dead = False
        self._stopped = False
        self._discarding: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; before the loop runs."""
        self._loop.call_later(WATCH_S, self._look)

    def stop(self) -> None:
        """Do nothing any more."""
        self._stopped = True
        if self._discarding is not None:
            self._discarding.cancel()

    def used(self) -> None:
        """TensorRT-LLM gets a request: from now on it has statistics."""
        self._used = True

    def _look(self) -> None:
        if self._stopped:
            return
        progress = self._progress()
        if not self._dead and (what := self._matter(progress)):
            self._dead = True
            self._on_death(what)
        if self._used and self._discarding is None:
            # Once more after the last request.
            self._used = progress.running > 0
            self._discarding = self._loop.create_task(self._discard())
        self._loop.call_later(WATCH_S, self._look)

    def _matter(self, progress: Progress) -> str:
        if not self._api.healthy(self._llm):
            return EXECUTOR_ENDED
        return NO_STEP if self._progress_watch.stalled(progress) else ""

    async def _discard(self) -> None:
        try:
            self._on_kv_events(await self._api.read_statistics(self._llm))
        except Exception:
            # Not again, and nothing is lost but memory.
            logger.warning("TensorRT-LLM's statistics cannot be thrown away; they take memory", exc_info=True)
        else:
            self._discarding = None
