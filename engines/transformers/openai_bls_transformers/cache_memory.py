"""Memory that a KV cache takes: the longest sequence that fits, the error that says so, and the share in use."""

from __future__ import annotations

from typing import Any

from openai_bls.core.manifest import EngineLoadError

CPU_CACHE_BYTES = 256 << 20
"""KV cache on a CPU, if a sequence of the longest length does not need more."""
_CPU_SHARE, _GPU_SHARE = 0.25, 0.9
"""Shares of the memory for a cache that one sequence of the longest length may take where the context does not fit: a
CPU's memory is everybody's, and a GPU's has the batch's own tensors too."""


class ContextLengthError(EngineLoadError):
    """The KV cache of one sequence of the longest length does not fit into memory."""

    def __init__(self, max_model_len: int, fits: int, memory_bytes: int) -> None:
        self.fits = fits
        """Longest sequence for which there is memory, in tokens."""
        super().__init__(
            f"the KV cache of one sequence of {max_model_len:,} tokens does not fit into the memory for it "
            f"({memory_bytes / 2**30:.1f} GiB), {fits:,} tokens do: give another --max-model-len, and "
            "--max-tokens-in-kv-cache for the tokens of all sequences together"
        )


def require_context(max_model_len: int, bytes_per_token: int, memory_bytes: int, *, on_gpu: bool) -> None:
    """Check that one sequence of the longest length fits.

    Args:
        max_model_len: longest sequence, in tokens.
        bytes_per_token: bytes of the cache per token, with what grows with it; 0 if unknown, and nothing is checked.
        memory_bytes: memory for the cache.
        on_gpu: the memory is a GPU's, which the engine has for itself.

    Raises:
        ContextLengthError: it does not.
    """
    if bytes_per_token and max_model_len * bytes_per_token > memory_bytes:
        fits = memory_bytes * (_GPU_SHARE if on_gpu else _CPU_SHARE) // bytes_per_token
        raise ContextLengthError(max_model_len, max(1, int(fits) // 64 * 64), memory_bytes)


def used_share(cache: Any) -> float:
    """Share of a paged cache that sequences hold; pages kept in case their prefix comes again are free."""
    if not hasattr(cache, "compute_free_capacity"):  # 5.17
        return 1.0 - float(cache.get_num_free_blocks()) / float(cache.num_blocks)
    kept = sum(
        len(allocator.ledger.cached_blocks) * allocator.bytes_per_block for allocator in cache.cache_allocators.values()
    )
    used = 1.0 - cache.compute_free_capacity() - kept / (cache.num_sectors * cache.bytes_per_sector)
    return min(1.0, max(0.0, float(used)))
