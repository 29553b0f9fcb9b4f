"""LoRA in TensorRT-LLM: its names of the modules, and the adapters that it applies in full.

It passes over what it does not know: modules that it was not set up for, lm_head, `alpha_pattern` (lora_manager.py of
0.20 to 1.2). So all of that is refused here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from openai_bls.core.engine import LoraError
from openai_bls.engines.adapters import Adapter, read_adapter, require_rank, require_shapes

_MODULES = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_dense",
    "gate_proj": "mlp_h_to_4h",
    "up_proj": "mlp_gate",
    "down_proj": "mlp_4h_to_h",
    "w1": "moe_h_to_4h",
    "w2": "moe_4h_to_h",
    "w3": "moe_gate",
    "gate": "moe_router",
}
"""Last part of a layer's path in Hugging Face's model → TensorRT-LLM's name, alike in 0.20 to 1.2."""

_ATTENTION = ("attn_q", "attn_k", "attn_v")
DENSE_MODULES = (*_ATTENTION, "attn_dense", "mlp_h_to_4h", "mlp_gate", "mlp_4h_to_h")
"""Modules of an engine that is built with room for adapters and without any."""


def target_modules(adapters: Mapping[str, Adapter], *, room: bool = False) -> tuple[str, ...]:
    """TensorRT-LLM's names of all modules that `adapters` change; empty leaves it to TensorRT-LLM, for a single one.

    Left to itself it takes those of the first adapter alone, and from several in the PyTorch flow none. Queries, keys
    and values go together, which it sees to only where it has a single directory.

    Args:
        adapters: adapters by name.
        room: others are to be loaded later.

    Raises:
        LoraError: a module is not in TensorRT-LLM's table.
    """
    if not adapters:
        return DENSE_MODULES if room else ()
    found: set[str] = set()
    for name, adapter in adapters.items():
        _require_scaling(adapter)
        unknown = sorted(_names(adapter) - set(_MODULES))
        if unknown == ["lm_head"] or (unknown and (room or len(adapters) > 1)):
            raise LoraError(
                f"the adapter {name} changes {', '.join(unknown)}, and TensorRT-LLM's table for adapters has "
                f"{', '.join(_MODULES)}"
            )
        if unknown:
            return ()
        found |= {_MODULES[part] for part in _names(adapter)}
    if found & set(_ATTENTION):
        found.update(_ATTENTION)
    return tuple(sorted(found))


def read(folder: Path, checkpoint: Path, modules: tuple[str, ...], max_rank: int) -> Adapter:
    """The adapter in `folder`, for an engine that is loaded.

    Args:
        folder: folder of the adapter.
        checkpoint: folder with the model's config.json.
        modules: TensorRT-LLM's names of those that the engine was set up for.
        max_rank: largest rank that it was set up for.

    Raises:
        LoraError: the engine cannot apply it.
    """
    adapter = read_adapter(folder)
    _require_scaling(adapter)
    require_rank(adapter, max_rank)
    missing = sorted(part for part in _names(adapter) if _MODULES.get(part) not in modules)
    if missing:
        here = ", ".join(part for part, module in _MODULES.items() if module in modules)
        raise LoraError(f"the adapter changes {', '.join(missing)}, and this engine was set up for {here}")
    require_shapes(adapter, checkpoint)
    return adapter


def _names(adapter: Adapter) -> set[str]:
    return {path.rpartition(".")[2] for path in adapter.modules}


def _require_scaling(adapter: Adapter) -> None:
    if adapter.config.get("alpha_pattern"):
        raise LoraError("alpha_pattern in adapter_config.json is not supported by TensorRT-LLM")
