"""Size of vLLM's KV cache on a CPU, where by itself it would take most of the machine's memory."""

from __future__ import annotations

from openai_bls.core.machine.memory import available_bytes
from openai_bls.engines.load_memory import of_checkpoint
from openai_bls.engines.plugin import LoadMemory, LoadRequest

GIB = 1 << 30
LEAST = GIB
MOST = 8 * GIB
_SHARE = 0.4
"""Largest share of the free memory that the cache takes."""
_SLACK = 1.1
"""Blocks are not filled."""


_PROCESS_BYTES = 3072 << 20
"""Libraries and buffers of vLLM's processes."""


def load_memory(request: LoadRequest) -> LoadMemory:
    """Weights, the KV cache on a CPU, and vLLM's processes."""
    tokens = request.manifest.max_batch_size * request.manifest.max_model_len
    return of_checkpoint(request, _PROCESS_BYTES, lambda facts: cpu_kv_cache_bytes(facts.kv_bytes_per_token, tokens))


def cpu_kv_cache_bytes(kv_bytes_per_token: int, tokens: int, available: int | None = None) -> int:
    """Bytes of a KV cache for `tokens` tokens, within bounds; a whole number of GiB.

    Args:
        kv_bytes_per_token: bytes per token at float32; 0 if unknown.
        tokens: number of tokens of all sequences together at their longest.
        available: free memory in bytes; None asks the system and this container's control group.
    """
    if available is None:
        available = available_bytes()
    wanted = int(kv_bytes_per_token * tokens * _SLACK) if kv_bytes_per_token else MOST
    size = max(LEAST, min(wanted, MOST, int(available * _SHARE)))
    return -(-size // GIB) * GIB
