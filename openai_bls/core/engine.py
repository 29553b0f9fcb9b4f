"""Interface of every engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from openai_bls.core.engine_types import EngineInfo, GenerationRequest, TokenDelta

StepListener = Callable[[Sequence[TokenDelta]], None]
"""Called once per engine step with the deltas of all requests, from one thread of the engine's. It returns
quickly and never raises."""


class LoraError(Exception):
    """An adapter that cannot be loaded or unloaded; the message is one sentence for the client."""


class PrefixCacheError(Exception):
    """A prefix cache that is not reset; the message is one sentence for the client.

    Args:
        busy: True if a later reset may succeed.
    """

    def __init__(self, message: str, *, busy: bool = False) -> None:
        super().__init__(message)
        self.busy = busy


class EngineStats(msgspec.Struct, frozen=True):
    """Snapshot of an engine's load."""

    running: int
    """Sequences in the current batch."""
    waiting: int
    """Sequences submitted and not yet in a batch."""
    kv_cache_usage: float
    """Share of the KV cache in use, 0 to 1."""
    steps: int
    """Engine steps since the start."""
    generated_tokens: int
    """Tokens sampled since the start."""
    draft_tokens: int = 0
    """Tokens drafted by speculative decoding since the start."""
    accepted_draft_tokens: int = 0
    """Drafted tokens that became output since the start."""
    failed: bool = False
    """Every request is answered with an error until the engine is reloaded."""
    restarts: int = 0
    """Restarts of the engine's own process, where it has one, since the model was loaded."""
    kv_blocks: int = 0
    """Blocks of the KV cache; 0 if the engine does not tell."""
    kv_block_size: int = 0
    """Tokens per block of the KV cache; 0 if the engine does not tell."""

    @property
    def kv_blocks_used(self) -> int:
        """Blocks of the KV cache that sequences hold."""
        return round(self.kv_cache_usage * self.kv_blocks) if self.kv_blocks else 0


class Engine(Protocol):
    """Generates tokens for many requests at once (in-flight batching).

    An engine is constructed with a `StepListener` and is ready when its constructor returns. All methods may be called
    from any thread. Every submitted request gets exactly one delta with a `finish_reason`, whatever happens: its end,
    its cancellation ("cancelled"), a failure of the engine ("error"), or `close`.
    """

    @property
    def info(self) -> EngineInfo:
        """Identity, limits and capabilities. Of these, `lora_names` alone change, by the two calls below."""

    def submit(self, request: GenerationRequest) -> None:
        """Take a request; its tokens come through the listener. Does not wait for the engine.

        A request this engine cannot honour (too long, an unknown token id, an unsupported parameter) is answered
        through the listener with `finish_reason="error"` and `invalid=True`; nothing is raised.
        """

    def cancel(self, request_id: int) -> None:
        """Stop a request soon; an id that is not (or no longer) live is ignored."""

    def stats(self) -> EngineStats:
        """Snapshot of the load."""

    def load_lora(self, name: str, path: str) -> None:
        """Load the adapter in the folder `path`; from then on requests may name it. Takes seconds.

        Raises:
            LoraError: the engine takes none while it runs, or not this one.
        """

    def unload_lora(self, name: str) -> None:
        """Take no more requests for an adapter; those that it has finish.

        Raises:
            LoraError: no adapter of that name is loaded.
        """

    def reset_prefix_cache(self) -> None:
        """Forget the cached prompts, so that the next request computes its whole prompt. Waits for the engine's step.

        Raises:
            PrefixCacheError: the engine cannot, or sequences that run hold some of it.
        """

    def close(self) -> None:
        """End every live request with "cancelled", free the engine's memory and threads. Safe to call twice.

        A request submitted later is answered "cancelled" from the caller's thread.
        """
