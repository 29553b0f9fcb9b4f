"""Messages from rank 0, which schedules and samples, to the ranks that only compute, and their replies."""

from __future__ import annotations

import msgspec

from openai_bls.core.manifest import Manifest
from openai_bls.engines.embedded.options import EngineOptions
from openai_bls.engines.embedded.runner import BatchingConfig
from openai_bls.engines.embedded.runner_choice import RunnerChoice


class Load(msgspec.Struct, frozen=True, tag=True):
    """Load a shard."""

    folder: str
    """Of the checkpoint."""
    manifest: Manifest
    options: EngineOptions
    rank: int
    device: str


class Join(msgspec.Struct, frozen=True, tag=True):
    """Meet the other ranks."""

    store: str
    """File by which they find each other."""


class Attend(msgspec.Struct, frozen=True, tag=True):
    """Settle attention and operations of the model."""

    choice: RunnerChoice
    loaded: str
    """The attention that the model was loaded with."""


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Allocate the KV cache."""

    config: BatchingConfig


class Step(msgspec.Struct, frozen=True, tag=True):
    """Inputs of a step of continuous batching. Token ids that were sampled are still to come, by a broadcast."""

    pair: int
    """Set of inputs, of the two that overlapping steps take in turn."""
    padded: bool
    longest: int | None
    """Tokens of the longest sequence for which warm-up makes graphs."""
    tokens: int
    sequences: int
    max_kv_read: int
    uses_pages: bool
    read_sizes: list[int]
    write_sizes: list[int]
    max_length_q: int
    max_length_k: dict[str, int]
    total_length_q: int
    total_length_k: dict[str, int]
    small: bytes
    """int32 [inputs, columns]: token ids, positions, ends of queries and keys, rows of the logits."""
    pages: bytes = b""
    """int32 [kinds of layers, sequences, pages]."""
    written: bytes = b""
    """int64 [kinds of layers, slots]."""
    read: bytes = b""
    """int64 [kinds of layers, slots]."""
    adapters: bytes = b""
    """int32 [tokens]: slots of their adapters; empty if none has any."""


class Pass(msgspec.Struct, frozen=True, tag=True):
    """Run the base model over a prompt, without a cache that lasts."""

    token_ids: list[int]
    attention: str
    rounded_inputs: bool | None = None
    """See `Fp8Linear.plain_rounds`."""
    rounded_cache: bool = False
    """Keys and values are rounded to FP8."""
    slots: list[int] = []
    """The sequence's adapter; empty if it has none."""


class WriteAdapter(msgspec.Struct, frozen=True, tag=True):
    """Put an adapter into a slot."""

    slot: int
    folder: str


class Head(msgspec.Struct, frozen=True, tag=True):
    """Compute logits of hidden states, which come by a broadcast."""

    shape: tuple[int, ...]


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End the process."""


Message = Load | Join | Attend | Begin | WriteAdapter | Step | Pass | Head | Stop


class Reply(msgspec.Struct, frozen=True):
    """Reply to `Load`, `Join`, `Attend`, `Begin` and `WriteAdapter`."""

    problem: str = ""
    """Why it could not be done."""
    sectors: int = 0
    """Size of the KV cache that `Begin` made."""
