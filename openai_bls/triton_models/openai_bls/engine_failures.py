"""Engines that have failed to load, as Triton tells of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from openai_bls.triton_models.openai_bls.engine_connection import EngineConnection
from openai_bls.triton_models.server.model_index import ModelIndex, ModelIndexError

logger = logging.getLogger(__name__)

INTERVAL_S = 2.0
"""Seconds between two looks, while an engine is missing."""


class EngineFailures:
    """Reasons why engines are not served, kept until each engine is there; belongs to the event loop's thread.

    Args:
        index: index of the server's models.
        engines: connections to all engines.
        failed: reasons by the Triton model of the engine, which /health and /v1/models tell.
        on_failures: called after each look.
    """

    def __init__(
        self,
        index: ModelIndex,
        engines: Sequence[EngineConnection],
        failed: dict[str, str],
        on_failures: Callable[[], None],
    ) -> None:
        self._index = index
        self._engines = engines
        self._failed = failed
        self._on_failures = on_failures

    async def run(self) -> None:
        """Look, again and again, until all engines are there."""
        while not await self._look():
            await asyncio.sleep(INTERVAL_S)

    async def _look(self) -> bool:
        """True if all engines are there."""
        try:
            failures = await self._index.failures()
        except ModelIndexError as error:
            logger.debug("why an engine is missing is not known: %s", error)
            return False
        all_there = True
        for engine in self._engines:
            backend = engine.backend
            # A preprocessing that is called by BLS is not connected to.
            reasons = [failures[name] for name in (backend.engine, backend.preprocessing) if name in failures]
            if reasons:
                self._failed[backend.engine] = reasons[0]
            elif engine.complete:
                self._failed.pop(backend.engine, None)
            all_there = all_there and engine.complete and not reasons
        self._on_failures()
        return all_there
