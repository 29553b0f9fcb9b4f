"""Health watch of a loaded model: its executor is checked, its statistics are discarded, its KV events passed on.

An executor that dies tells nobody: requests that wait for it would wait for ever. Statistics of its iterations pile up
in this process until they are read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from openai_bls.engines.tensorrt_llm.api import Api
from openai_bls.engines.tensorrt_llm.interface import Llm

logger = logging.getLogger(__name__)

WATCH_S = 1.0
"""Seconds between two checks."""


class HealthWatch:
    """Belongs to an event loop, where everything happens."""

    def __init__(
        self,
        api: Api,
        llm: Llm,
        loop: asyncio.AbstractEventLoop,
        *,
        busy: Callable[[], bool],
        on_death: Callable[[], None],
        on_kv_events: Callable[[list[Any]], None] = lambda events: None,
    ) -> None:
        """Watch an executor.

        Args:
            api: the installed TensorRT-LLM.
            llm: the loaded model.
            loop: loop that everything runs on.
            busy: tells whether requests run.
            on_death: called once, when the executor has ended.
            on_kv_events: called with the KV events of each reading.
        """
        self._api = api
        self._llm = llm
        self._loop = loop
        self._busy = busy
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
        if not self._dead and not self._api.healthy(self._llm):
            self._dead = True
            self._on_death()
        if self._used and self._discarding is None:
            # Once more after the last request.
            self._used = self._busy()
            self._discarding = self._loop.create_task(self._discard())
        self._loop.call_later(WATCH_S, self._look)

    async def _discard(self) -> None:
        try:
            self._on_kv_events(await self._api.read_statistics(self._llm))
        except Exception:
            # Not again, and nothing is lost but memory.
            logger.warning("TensorRT-LLM's statistics cannot be thrown away; they take memory", exc_info=True)
        else:
            self._discarding = None
