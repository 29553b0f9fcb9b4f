"""LoRA in TensorRT-LLM: its names of the modules, and the adapters that it applies in full.

It passes over what it does not know: modules that it was not set up for, lm_head, `alpha_pattern` (lora_manager.py of
0.20 to 1.2). So all of that is refused here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openai_bls.core.checkpoint import read_json, text_config
from openai_bls.core.engine import LoraError
from openai_bls.core.manifest import EngineLoadError
from openai_bls.engines.adapters import Adapter, read_adapter, require_rank, require_shapes
from openai_bls_tensorrt_llm.installed.interface import Version

_MODULES = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_dense",
    "gate_proj": "mlp_h_to_4h",
    "up_proj": "mlp_gate",
    "down_proj": "mlp_4h_to_h",
    "gate_up_proj": "mlp_gate_up",
    "qkv_proj": "attn_qkv",
    "w1": "moe_h_to_4h",
    "w2": "moe_4h_to_h",
    "w3": "moe_gate",
    "gate": "moe_router",
}
"""Last part of a layer's path in Hugging Face's model → TensorRT-LLM's name."""

_SINCE = {"qkv_proj": Version(1, 3)}
"""First release that knows the name; all others are in 0.20 to 1.2 too."""

_DENSE_FIXED = Version(1, 4)
"""First release known to size `attn_dense` by the heads (pull request 17153, after 1.2.1). Before, it is hidden_size by
hidden_size (loraModule.cpp), and where heads times head_dim is another number text can be wrong without an error."""

_ATTENTION = ("attn_q", "attn_k", "attn_v")
DENSE_MODULES = (*_ATTENTION, "attn_dense", "mlp_h_to_4h", "mlp_gate", "mlp_4h_to_h")
"""Modules of an engine that is built with room for adapters and without any."""


def target_modules(
    adapters: Mapping[str, Adapter], config: Mapping[str, Any], version: Version, *, room: bool = False
) -> tuple[str, ...]:
    """TensorRT-LLM's names of all modules that `adapters` change; empty leaves it to TensorRT-LLM, for a single one.

    Left to itself it takes those of the first adapter alone, and from several in the PyTorch flow none. Queries, keys
    and values go together, which it sees to only where it has a single directory.

    Args:
        adapters: adapters by name.
        config: contents of the model's config.json.
        version: version of TensorRT-LLM.
        room: others are to be loaded later.

    Raises:
        LoraError: a module is not in TensorRT-LLM's table, or this release sizes it wrongly.
    """
    if not adapters:
        return DENSE_MODULES if room else ()
    known = {part: module for part, module in _MODULES.items() if version >= _SINCE.get(part, version)}
    found: set[str] = set()
    for name, adapter in adapters.items():
        _require_scaling(adapter)
        if refused := _sized_wrongly(adapter, config, version):
            raise LoraError(f"the adapter {name} {refused}")
        unknown = sorted(_names(adapter) - set(known))
        if unknown == ["lm_head"] or (unknown and (room or len(adapters) > 1)):
            raise LoraError(
                f"the adapter {name} changes {', '.join(unknown)}, and TensorRT-LLM's table for adapters has "
                f"{', '.join(known)}"
            )
        if unknown:
            return ()
        found |= {known[part] for part in _names(adapter)}
    if found & set(_ATTENTION):
        found.update(_ATTENTION)
    return tuple(sorted(found))


def read(folder: Path, checkpoint: Path, modules: tuple[str, ...], max_rank: int, version: Version) -> Adapter:
    """The adapter in `folder`, for an engine that is loaded.

    Args:
        folder: folder of the adapter.
        checkpoint: folder with the model's config.json.
        modules: TensorRT-LLM's names of those that the engine was set up for.
        max_rank: largest rank that it was set up for.
        version: version of TensorRT-LLM.

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
    try:
        config = read_json(checkpoint / "config.json")
    except EngineLoadError:
        config = {}
    if refused := _sized_wrongly(adapter, config, version):
        raise LoraError(f"the adapter {refused}")
    return adapter


def gpu_bytes(adapter: Adapter) -> int:
    """Bytes of GPU memory that TensorRT-LLM keeps of an adapter, in a type of two bytes, over all ranks."""
    return 2 * sum(module.rank * (module.inputs + module.outputs) for module in adapter.modules.values())


def _sized_wrongly(adapter: Adapter, config: Mapping[str, Any], version: Version) -> str:
    """Refusal of an adapter with a module that this release sizes wrongly, without its name; empty if there is none."""
    text = text_config(dict(config))
    hidden, heads, head_dim = (text.get(name) for name in ("hidden_size", "num_attention_heads", "head_dim"))
    if version >= _DENSE_FIXED or "o_proj" not in _names(adapter):
        return ""
    if not (isinstance(hidden, int) and isinstance(heads, int) and isinstance(head_dim, int)):
        return ""
    if heads * head_dim == hidden:
        return ""
    return (
        f"changes o_proj, which TensorRT-LLM {version} sizes {hidden} x {hidden} where this model has {heads} heads of "
        f"{head_dim} ({heads * head_dim}): its text could be wrong without an error; train it without o_proj, or use "
        f"--engine vllm"
    )


def _names(adapter: Adapter) -> set[str]:
    return {path.rpartition(".")[2] for path in adapter.modules}


def _require_scaling(adapter: Adapter) -> None:
    if adapter.config.get("alpha_pattern"):
        raise LoraError("alpha_pattern in adapter_config.json is not supported by TensorRT-LLM")
