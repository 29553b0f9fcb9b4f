"""Memory of the KV cache: its size in tokens, and whether it fits."""

from __future__ import annotations

from pathlib import Path

from openai_bls.core.checkpoint import CheckpointFacts
from openai_bls.core.manifest import EngineLoadError, Manifest
from openai_bls.core.memory import available_bytes

_CELLS = 32_768
"""Tokens of all sequences together where nothing else is said and one sequence may not be longer."""
_LONG_SEQUENCES = 8
"""Sequences of the longest length for which there is room at most, where nothing else is said."""


def bytes_per_token(facts: CheckpointFacts) -> int:
    """Bytes of a token's keys and values; 0 if their size is unknown."""
    # Two bytes for each number in the place of the four that the facts count.
    return facts.kv_bytes_per_token // 2


def fitting_tokens(facts: CheckpointFacts, file: Path, share: float) -> int | None:
    """Tokens whose keys and values fit into the memory beside the weights; None if their size is unknown.

    Args:
        facts: facts of the checkpoint.
        file: the GGUF file.
        share: largest share of what the weights leave.
    """
    each = bytes_per_token(facts)
    if not each:
        return None
    return max(0, int((available_bytes() - file.stat().st_size) * share)) // each


def cells(asked: int, manifest: Manifest, facts: CheckpointFacts, file: Path) -> int:
    """Tokens of all sequences together.

    Args:
        asked: number of tokens that the options or the manifest give; 0 is none.
        manifest: manifest of the engine.
        facts: facts of the checkpoint.
        file: the GGUF file.

    Raises:
        EngineLoadError: one sequence of the longest length does not fit.
    """
    longest = manifest.max_model_len
    if asked:
        if asked < longest:
            raise EngineLoadError(f"max_tokens_in_kv_cache {asked} does not hold one sequence of {longest} tokens")
        return asked
    wanted = max(longest, min(longest * _LONG_SEQUENCES, _CELLS))
    fits = fitting_tokens(facts, file, manifest.kv_cache.free_memory_fraction)
    if fits is None:
        return wanted
    if fits < longest:
        raise EngineLoadError(
            f"the KV cache of one sequence of {longest:,} tokens does not fit into the memory, {fits:,} tokens do: "
            "build with another --max-model-len, and --max-tokens-in-kv-cache for the tokens of all sequences together"
        )
    return min(wanted, fits)
