"""KV events of TensorRT-LLM, as `LLM.get_kv_cache_events_async` tells them, in vLLM's form."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Any

from openai_bls.engines.kv_events.events import AllBlocksCleared, BlockRemoved, BlockStored, Event

logger = logging.getLogger(__name__)

EVENT_BUFFER = 65_536
"""Events that TensorRT-LLM keeps until they are read, once a second; beyond them it drops the oldest."""
_MEDIA = ("GPU", "CPU")
"""Names of the cache's levels: the GPU's memory, and the host's."""


class KvEvents:
    """Translates the events of one executor, in order.

    TensorRT-LLM also keeps the last block of a prompt, which is not full; consumers know full blocks only, so those
    are left out, and what is said of them later.
    """

    def __init__(self, tokens_per_block: int) -> None:
        self._tokens_per_block = tokens_per_block
        self._partial: set[int] = set()
        """Hashes of the blocks that were left out."""
        self._next_id: int | None = None

    def translated(self, told: Iterable[Any]) -> list[Event]:
        """Events of what one reading has brought; anything that is none, such as null, is passed over."""
        events: list[Event] = []
        for one in told:
            event = json.loads(one) if isinstance(one, str) else one
            if isinstance(event, dict) and isinstance(event.get("data"), dict):
                self._check_number(event)
                events += self._events(event["data"])
        return events

    def _check_number(self, event: dict[str, Any]) -> None:
        number = event.get("event_id")
        if isinstance(number, int):
            if self._next_id is not None and number > self._next_id:
                logger.warning(
                    "TensorRT-LLM has dropped %d KV events: consumers have more than it", number - self._next_id
                )
            self._next_id = number + 1

    def _events(self, data: dict[str, Any]) -> list[Event]:
        match data.get("type"):
            case "created":
                self._partial.clear()
                return [AllBlocksCleared()]
            case "stored":
                return self._stored(data)
            case "removed":
                hashes = [one for one in data["block_hashes"] if one not in self._partial]
                self._partial.difference_update(data["block_hashes"])
                return [BlockRemoved(hashes, None)] if hashes else []
        # `updated` is of priorities, or of a move between levels, where the block stays in the cache.
        return []

    def _stored(self, data: dict[str, Any]) -> list[Event]:
        hashes: list[int] = []
        token_ids: list[int] = []
        level, adapter = 0, None
        for block in data["blocks"]:
            tokens = [token["token_id"] for token in block["tokens"]]
            if len(tokens) != self._tokens_per_block:
                self._partial.add(block["block_hash"])
                break
            # A block that has become full keeps its place.
            self._partial.discard(block["block_hash"])
            hashes.append(block["block_hash"])
            token_ids += tokens
            level, adapter = block.get("cache_level", 0), block.get("lora_id")
        if not hashes:
            return []
        return [
            BlockStored(
                block_hashes=hashes,
                parent_block_hash=data.get("parent_hash"),
                token_ids=token_ids,
                block_size=self._tokens_per_block,
                lora_id=adapter,
                medium=_MEDIA[level] if level < len(_MEDIA) else None,
                lora_name=None,
            )
        ]
