"""Client of an engine over several machines: vLLM's own, which dies once a machine is gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from openai_bls.core.manifest import EngineLoadError
from openai_bls.engines.vllm.interface import Client, Generation, Listeners, LoraAdapter
from openai_bls.engines.vllm.multi_node.nodes import Nodes
from openai_bls.engines.vllm.multi_node.watch import Gathering

logger = logging.getLogger(__name__)

_NOT_LOADED = 2
"""Exit status of an engine's process whose engine could not be loaded."""


def gather(nodes: Nodes) -> Gathering | None:
    """Wait for the other machines; None where there is one alone.

    A machine that is gone while vLLM loads ends this process.

    Raises:
        EngineLoadError: this is not the first machine, or another has not come in time; one sentence.
    """
    if not nodes.several:
        return None
    if nodes.node_rank:
        raise EngineLoadError(
            f"node_rank is {nodes.node_rank}, and only machine 0 serves the engine: run `openai-bls engine --headless`"
        )
    gathering = Gathering(nodes)
    try:
        gathering.wait()
    except EngineLoadError:
        gathering.close(orderly=False)
        raise
    gathering.watch(_end_process)
    return gathering


class WatchedClient:
    """A `Client` over several machines.

    Args:
        client: client of vLLM, loaded.
        gathering: the other machines.
    """

    def __init__(self, client: Client, gathering: Gathering) -> None:
        self.name = client.name
        self._client = client
        self._gathering = gathering
        self._orderly = True

    def start(self, listeners: Listeners) -> None:
        """Begin to read outputs."""
        loop = asyncio.get_running_loop()

        def die(error: BaseException) -> None:
            self._orderly = False
            listeners.death(error)

        def lose(sentence: str) -> None:
            # Closed is the loop once the engine is.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(die, EngineLoadError(sentence))

        self._client.start(listeners._replace(death=die))
        self._gathering.watch(lose)

    def add(self, generations: Sequence[Generation]) -> None:
        """Start requests."""
        self._client.add(generations)

    def abort(self, request_ids: Sequence[str]) -> None:
        """Stop requests."""
        self._client.abort(request_ids)

    async def add_lora(self, adapter: LoraAdapter) -> bool:
        """Load an adapter's weights."""
        return await self._client.add_lora(adapter)

    async def remove_lora(self, number: int) -> bool:
        """Drop an adapter's weights."""
        return await self._client.remove_lora(number)

    async def reset_prefix_cache(self) -> bool:
        """Forget cached prompts; False if running sequences hold some."""
        return await self._client.reset_prefix_cache()

    def shutdown(self) -> None:
        """End vLLM's processes, and let the other machines go."""
        try:
            self._client.shutdown()
        finally:
            self._gathering.close(orderly=self._orderly)


def _end_process(sentence: str) -> NoReturn:
    """vLLM would wait for the machine, and its loading cannot be broken off."""
    sys.stderr.write(f"openai_bls: error: {sentence}\n")
    sys.stderr.flush()
    os._exit(_NOT_LOADED)
