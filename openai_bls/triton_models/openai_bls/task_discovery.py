"""Discovery of task models: what Triton loads and unloads comes and goes on the API.

The running server is asked, not the config.pbtxt files: it alone knows what is loaded under explicit model control,
from which of several repositories, and with which configuration (a load may override it, `auto_complete_config` adds to
it). A look is one request for the list, one for each task model, and one for another model in turn, since a reload may
have given that one a task: 1.7 ms of CPU time with none of them, on both sides together.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection

from openai_bls.pipeline.models.registry import Models
from openai_bls.pipeline.task_models.registry import TaskModel
from openai_bls.triton_models.openai_bls.task_config import task_model
from openai_bls.triton_models.server.model_index import Config, ModelIndex, ModelIndexError

logger = logging.getLogger(__name__)

# Seconds between two looks until the first one succeeds.
_START_RETRY_S = 0.1
QUIET_S = 10.0
"""Seconds without an answer before the log says so: while a server starts or stops there is none."""


class TaskDiscovery:
    """Keeps the task models as the server has them; belongs to the event loop's thread.

    Args:
        index: index of the server's models.
        models: registry whose task models are kept.
        interval_s: seconds between two looks.
    """

    def __init__(self, index: ModelIndex, models: Models, interval_s: float) -> None:
        self._index = index
        self._models = models
        self._interval_s = interval_s
        self._others: list[str] = []
        """Ready models without a task; the one that was asked longest ago comes first."""
        self._wanted: set[str] = set()
        """Names that requests ask for."""
        self._lock = asyncio.Lock()
        self._begun = 0
        self._ended = 0
        self._succeeded = False
        self._failing_since: float | None = None
        self._warned = False
        models.tasks.look = self.look

    async def run(self) -> None:
        """Look, again and again, until cancelled."""
        while True:
            await self.look()
            # The front end opens a moment after the models are loaded.
            await asyncio.sleep(self._interval_s if self._succeeded else min(_START_RETRY_S, self._interval_s))

    async def look(self, name: str | None = None) -> None:
        """Look now. Requests that ask at the same time share one look, which began after they asked.

        Args:
            name: a model to ask for, even if it has declared no task so far.
        """
        asked_at = self._begun
        if name is not None:
            self._wanted.add(name)
        async with self._lock:
            if self._ended > asked_at:
                return
            self._begun += 1
            number = self._begun
            wanted, self._wanted = self._wanted, set()
            try:
                await self._look(wanted)
            except ModelIndexError as error:
                self._on_failure(error)
            else:
                self._succeeded = True
                self._failing_since = None
                self._warned = False
            # One that failed is shared too: each of many requests would wait for its own.
            self._ended = number

    def _on_failure(self, error: ModelIndexError) -> None:
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= QUIET_S and not self._warned:
            self._warned = True
            logger.warning("whether other models declare an openai_task is not known: %s", error)

    async def _look(self, wanted: Collection[str]) -> None:
        ready = await self._index.ready()
        others = [name for name in self._others if name in ready and name not in wanted]
        # All that are new or have a task, and one that has none.
        asked = [name for name in ready if name not in others] + others[:1]
        configs = await self._index.configs(asked)
        found = []
        without = []
        for name in asked:
            config = configs.get(name)
            model = None if config is None else self._parse(name, config)
            if model is not None:
                found.append(model)
            elif config is not None:
                without.append(name)
        self._others = others[1:] + without
        self._replace(sorted(found, key=lambda model: model.name))

    def _parse(self, name: str, config: Config) -> TaskModel | None:
        known = self._models.tasks.get(name)
        return task_model(config, known.created if known is not None else int(time.time()))

    def _replace(self, found: list[TaskModel]) -> None:
        """Take what was found, and log what has changed."""
        before = {model.name: model for model in self._models.tasks}
        self._models.tasks.replace(found)
        for model in found:
            if before.pop(model.name, None) == model:
                continue
            if model.fault is not None:
                logger.error("model %s is refused as an openai_task model: %s", model.name, model.fault)
            elif model.name in self._models.engine_names:
                logger.warning(
                    "model %s declares openai_task %s, but an engine is served by that name: requests go to the engine",
                    model.name,
                    model.task,
                )
            else:
                logger.info("/v1 serves %s too: openai_task %s", model.name, model.task)
        for name in before:
            logger.info("/v1 serves %s no longer: it is unloaded, or declares no openai_task", name)
