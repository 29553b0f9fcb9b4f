"""Load of vLLM's scheduler, from the statistics that come with its steps."""

from __future__ import annotations

from typing import Any

from openai_bls.core.engine import EngineStats


class Load:
    """Newest statistics, and counts since the start; written by the engine's thread, read by any.

    With data parallelism each engine core sends statistics of its own, of which the newest counts.

    Args:
        kv_blocks: blocks of the KV cache; 0 if unknown.
        kv_block_size: tokens per block; 0 if unknown.
    """

    def __init__(self, kv_blocks: int = 0, kv_block_size: int = 0) -> None:
        self._kv_blocks = kv_blocks
        self._kv_block_size = kv_block_size
        self.steps = 0
        self.generated_tokens = 0
        self._waiting = 0
        self._kv_cache_usage = 0.0
        self._draft_tokens = 0
        self._accepted = 0

    def observe(self, stats: Any) -> None:
        """Take in a step's `SchedulerStats`."""
        self._waiting = stats.num_waiting_reqs + getattr(stats, "num_skipped_waiting_reqs", 0)
        self._kv_cache_usage = stats.kv_cache_usage
        drafts = stats.spec_decoding_stats
        if drafts is not None:
            self._draft_tokens += drafts.num_draft_tokens
            self._accepted += drafts.num_accepted_tokens

    def stats(self, live: int, max_batch_size: int, *, failed: bool) -> EngineStats:
        """Snapshot.

        Args:
            live: requests that have not ended; vLLM sends no statistics after its last step, which may be before the
                last cancellation.
            max_batch_size: most of them that run.
            failed: vLLM has died.
        """
        waiting = min(max(self._waiting, live - max_batch_size), live)
        return EngineStats(
            running=live - waiting,
            waiting=waiting,
            kv_cache_usage=min(1.0, max(0.0, self._kv_cache_usage)) if live else 0.0,
            steps=self.steps,
            generated_tokens=self.generated_tokens,
            draft_tokens=self._draft_tokens,
            accepted_draft_tokens=self._accepted,
            failed=failed,
            kv_blocks=self._kv_blocks,
            kv_block_size=self._kv_block_size,
        )
