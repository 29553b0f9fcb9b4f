"""KV cache: its size in tokens, whether each sequence has a part of it, and whether it fits.

With a part for each place, attention reads no cells but the sequence's own, and what ended sequences left costs
nothing. Each part has the size of the longest sequence. So parts are taken where `max_batch_size` of them fit into the
tokens that are asked for or, where none are, into a share of the memory; else all sequences share one cache, in which
one may be long as long as others are short.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from openai_bls.core.checkpoint import GGUF_NAME, CheckpointFacts, read_checkpoint
from openai_bls.core.machine.memory import available_bytes
from openai_bls.core.manifest import EngineLoadError, Manifest
from openai_bls.engines.load_memory import weight_bytes
from openai_bls.engines.plugin import LoadMemory, LoadRequest
from openai_bls_llama_cpp.options import LlamaCppOptions, with_settings

PLACES_IN_PARTS = 8
"""Sequences at once where nothing is said and so many parts fit."""
PLACES_IN_ONE_CACHE = 64
"""Sequences at once where nothing is said and they share one cache."""
_CELLS = 32_768
"""Tokens of all sequences together where nothing else is said and one sequence may not be longer."""
_LONG_SEQUENCES = 8
"""Sequences of the longest length for which one cache has room at most, where nothing else is said."""
_SHARE_OF_PARTS = 0.4
"""Largest share of the tokens that fit for parts of more than these, where nothing else is said: llama.cpp writes to
all of its cache when it begins, so all of it is taken from the machine."""


_PROCESS_BYTES = 256 << 20
"""Libraries and buffers of the process."""


class KvCache(NamedTuple):
    """Size of a KV cache."""

    tokens: int
    """Tokens of all sequences together."""
    in_parts: bool = False
    """Each place has a part, all of one size; else all sequences share all of it."""


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


def kv_cache(manifest: Manifest, facts: CheckpointFacts, file: Path) -> KvCache:
    """The KV cache that an engine takes.

    Args:
        manifest: manifest of the engine, with what overrides it.
        facts: facts of the checkpoint.
        file: the GGUF file.

    Raises:
        EngineLoadError: one sequence of the longest length does not fit.
    """
    longest, settings = manifest.max_model_len, manifest.kv_cache
    shared = room = settings.max_tokens_in_kv_cache
    if shared and shared < longest:
        raise EngineLoadError(f"max_tokens_in_kv_cache {shared} does not hold one sequence of {longest} tokens")
    if not shared:
        shared = room = max(longest, min(longest * _LONG_SEQUENCES, _CELLS))
        fits = fitting_tokens(facts, file, settings.free_memory_fraction)
        if fits is not None and fits < longest:
            raise EngineLoadError(
                f"the KV cache of one sequence of {longest:,} tokens does not fit into the memory, {fits:,} tokens do: "
                "build with another --max-model-len, and --max-tokens-in-kv-cache for the tokens of all sequences "
                "together"
            )
        if fits is not None:
            shared = min(shared, fits)
            room = max(shared, int(fits * _SHARE_OF_PARTS))
    parts = manifest.max_batch_size * longest
    return KvCache(parts, in_parts=True) if parts <= room else KvCache(shared)


def default_places(manifest: Manifest, facts: CheckpointFacts, file: Path) -> int:
    """Sequences at once where nothing is said: few in parts if these fit, else more in one cache.

    Raises:
        EngineLoadError: see `kv_cache`.
    """
    few = msgspec.structs.replace(manifest, max_batch_size=PLACES_IN_PARTS)
    return PLACES_IN_PARTS if kv_cache(few, facts, file).in_parts else PLACES_IN_ONE_CACHE


def described(cache: KvCache, places: int, facts: CheckpointFacts) -> str:
    """Size of a cache, and who has which part, in words."""
    size = cache.tokens * bytes_per_token(facts) / 1e9
    whose = f"{cache.tokens // places:,} for each of" if cache.in_parts else "shared by"
    return f"{cache.tokens:,} tokens{f' ({size:,.1f} GB)' if size else ''}, {whose} {places} sequences"


def load_memory(request: LoadRequest) -> LoadMemory:
    """The file as it is, the KV cache and the process, on a CPU in any case.

    Raises:
        EngineLoadError: the cache does not fit.
    """
    options = request.options if isinstance(request.options, LlamaCppOptions) else LlamaCppOptions()
    manifest = with_settings(options, request.settings).over(request.manifest)
    folder = request.version_dir / manifest.checkpoint
    facts = read_checkpoint(folder)
    cache = kv_cache(manifest, facts, folder / GGUF_NAME).tokens * bytes_per_token(facts)
    return LoadMemory(_PROCESS_BYTES + weight_bytes(manifest) + cache)
