"""KV events as vLLM encodes them, from `vllm/distributed/kv_events.py` of vLLM 0.32.

A batch is a msgpack array `[time, events, data-parallel rank]`; an event is a map with its class's name under `type`.
Fields at their defaults are left out.
"""

from __future__ import annotations

from typing import Any

import msgspec

MEDIUM_GPU = "GPU"
"""Tier of the cache whose blocks a forward pass reads; vLLM's name for it on a CPU as well."""


class BlockStored(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    """Blocks that the prefix cache has got, a row of them that follow each other."""

    block_hashes: list[int]
    """Hash of each block, which names it in all events."""
    parent_block_hash: int | None
    """Hash of the block before the first one; None at the beginning of a prompt."""
    token_ids: list[int]
    """Tokens of all the blocks, shape [len(block_hashes) * block_size]."""
    block_size: int
    """Tokens per block."""
    lora_id: int | None
    """Number of the adapter that the keys and values are of; None is the base model."""
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    """Further keys of a block's hash, one entry per block: the name of the adapter, or each image that the block has
    tokens of, as its hash and the index in the block of its first token, which is negative if that lies before."""
    group_idx: int | None = None
    """Group of layers that share a page table."""


class BlockRemoved(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    """Blocks that the prefix cache has no more."""

    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    """The prefix cache is empty."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Events of one engine step, in order."""

    ts: float
    """Seconds since 1970."""
    events: list[Event]
    data_parallel_rank: int | None = None
