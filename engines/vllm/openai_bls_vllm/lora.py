"""LoRA in vLLM: the adapters that it applies in full, and the numbers and keys that it knows them by."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from openai_bls.core.engine import LoraError
from openai_bls.core.manifest import sha256
from openai_bls.engines.adapters import CONFIG_FILE, WEIGHTS_FILE, Adapter, read_adapter, require_rank, require_shapes
from openai_bls_vllm.interface import LoraAdapter

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's `max_lora_rank`."""


def vllm_max_rank(rank: int) -> int:
    """The least `max_lora_rank` that takes adapters of a rank.

    Raises:
        LoraError: there is none.
    """
    for most in RANKS:
        if rank <= most:
            return most
    raise LoraError(f"vLLM takes adapters with a rank of up to {RANKS[-1]}, not {rank} (--max-lora-rank)")


def read(name: str, folder: Path, checkpoint: Path, max_rank: int, taken: Iterable[int] = ()) -> LoraAdapter:
    """The adapter in `folder`, for a loaded engine. Reads its weights once, for their hash.

    Args:
        name: name that requests use.
        folder: a PEFT directory.
        checkpoint: folder of the model's config.json.
        max_rank: largest rank that the engine takes.
        taken: numbers of adapters that vLLM may still hold.

    Raises:
        LoraError: vLLM cannot apply it.
    """
    adapter = read_adapter(folder)
    _require_one_scaling(adapter)
    require_rank(adapter, max_rank)
    require_shapes(adapter, checkpoint)
    try:
        told = [sha256(folder / file) for file in (CONFIG_FILE, WEIGHTS_FILE)]
    except OSError as error:
        raise LoraError(f"the adapter {name} cannot be read: {error.strerror}") from None
    digest = hashlib.sha256("\0".join((name, *told)).encode()).hexdigest()
    number = int(digest[:7], 16) + 1
    used = set(taken)
    while number in used:
        number += 1
    return LoraAdapter(name, str(folder), number, f"{name}@{digest[:16]}")


def _require_one_scaling(adapter: Adapter) -> None:
    """Versions of vLLM differ in whether they apply patterns; none says so."""
    if len({round(adapter.scaling(path), 9) for path in adapter.modules}) > 1:
        raise LoraError(
            "the adapter scales its layers differently (rank_pattern or alpha_pattern), which the engine vllm does not "
            "apply: merge it into the checkpoint"
        )
