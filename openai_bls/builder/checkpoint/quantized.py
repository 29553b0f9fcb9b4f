"""Quantized checkpoints: the forms in which they come."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from openai_bls.core.checkpoint import Tensors, text_config


class StoredAs(msgspec.Struct, frozen=True):
    """Quantization of a checkpoint, in its own words."""

    form: str
    """Key of `CHECKPOINT_FORMS` if it is one of them: `gptq`, `fp8_block`, `ModelOpt NVFP4`."""
    kv_cache: str = ""
    """Type of the KV cache, e.g. `fp8`; empty if the checkpoint does not say."""
    inline: bool = False
    """ModelOpt's description is in config.json, not in `MODELOPT_FILE`."""


class CheckpointForm(msgspec.Struct, frozen=True):
    """A form in which checkpoints come quantized."""

    title: str
    """Name that people use."""
    tensorrt: bool = False
    """True if an engine can be built of it (flow `tensorrt`)."""
    pytorch_since: tuple[int, int] | None = None
    """The first release whose PyTorch flow loads it, 1.0 or later; None if none does."""
    instead: str = ""
    """`--quant` that makes something like it of the original checkpoint."""


_PLAIN = ("F64", "F32", "F16", "BF16")
"""Types of tensors that are not quantized, by safetensors' names."""
_QUANTIZED = ("I8", "F8_E4M3", "F8_E5M2")
_SCALES = ("scale", "scales", "scale_inv")
"""Ends of the names of tensors by which others are scaled."""

_MODELOPT_FORMS = {
    "FP8": ("FP8", "fp8"),
    "NVFP4": ("NVFP4", "nvfp4"),
    "W4A16_AWQ": ("AWQ", "awq"),
    "W4A8_AWQ": ("W4A8 AWQ", "w4a8_awq"),
    "FP8_BLOCK_SCALES": ("FP8 in blocks", "fp8"),
    "FP8_PER_CHANNEL_PER_TOKEN": ("FP8 by rows", "fp8_rowwise"),
    "MIXED_PRECISION": ("mixed precision", ""),
}
CHECKPOINT_FORMS: dict[str, CheckpointForm] = {
    f"ModelOpt {name}": CheckpointForm(f"ModelOpt's {title}", name in ("FP8", "NVFP4"), (1, 0), instead)
    for name, (title, instead) in _MODELOPT_FORMS.items()
} | {
    "fp8_block": CheckpointForm("FP8 in blocks (DeepSeek, Qwen3-FP8)", pytorch_since=(1, 0), instead="fp8"),
    "mxfp4": CheckpointForm("MXFP4 (gpt-oss)", pytorch_since=(1, 0)),
    "fp8": CheckpointForm("FP8 of other tools", pytorch_since=(1, 3), instead="fp8"),
    "compressed-tensors": CheckpointForm("compressed-tensors (LLM Compressor)", pytorch_since=(1, 3), instead="fp8"),
    "gptq": CheckpointForm("GPTQ (AutoGPTQ, GPTQModel)", instead="int4_weight_only"),
    "awq": CheckpointForm("AutoAWQ", instead="awq"),
    "bitsandbytes": CheckpointForm("bitsandbytes", instead="int8_weight_only"),
}
"""`StoredAs.form` → its description."""


def quantization_of(config: dict[str, Any]) -> str:
    """Quantization of the weights: a common name or config.json's own; empty if there is none."""
    told = config.get("quantization_config")
    if not isinstance(told, dict):
        return ""
    form = _form(told)
    if form in ("gptq", "awq"):
        bits = str(told.get("bits", told.get("w_bit", 4)))
        return {"4": form, "8": "int8_gptq" if form == "gptq" else ""}.get(bits) or f"{form} with {bits} bits"
    algorithm = form.removeprefix("ModelOpt ")
    return _QUANTS.get(algorithm, algorithm)


def stored_as(config: dict[str, Any]) -> StoredAs | None:
    """Quantization of the checkpoint; None if it has none."""
    told = config.get("quantization_config")
    if not isinstance(told, dict):
        return None
    form = _form(told)
    if not form.startswith("ModelOpt "):
        return StoredAs(form)
    cache = str(told.get("kv_cache_quant_algo") or "").lower()
    return StoredAs(form, "" if cache in ("none", "null") else cache, "told_by" not in told)


def plain_under(config: dict[str, Any], tensors: Tensors) -> str:
    """Quantization that `config` tells of, where no tensor is quantized; else empty.

    Args:
        config: config.json, as `read_config` has it.
        tensors: tensors of the checkpoint; none if they are not known.
    """
    stored = stored_as(text_config(config))
    if stored is None or not tensors:
        return ""
    plain = all(dtype in _PLAIN and not name.endswith(_SCALES) for name, (dtype, _) in tensors.items())
    return stored.form if plain else ""


class Untold(NamedTuple):
    """Quantized weights of which config.json does not tell."""

    names: list[str]
    types: list[str]
    """Their types, by safetensors' names, sorted."""
    scaled: bool
    """They mean something by their scales only: as plain numbers they are noise."""


def untold(config: dict[str, Any], tensors: Tensors) -> Untold | None:
    """Quantized weights in `tensors`, where `config` tells of no quantization; None if there are none.

    Args:
        config: config.json, as `read_config` has it.
        tensors: tensors of the checkpoint; none if they are not known.
    """
    text = text_config(config)
    names = sorted(name for name, (dtype, _) in tensors.items() if dtype in _QUANTIZED)
    if not names or text.get("quantization_config") or text.get("compression_config"):
        return None
    types = sorted({tensors[name][0] for name in names})
    return Untold(names, types, "I8" in types or any(name.endswith(_SCALES) for name in tensors))


def _form(told: dict[str, Any]) -> str:
    method = str(told.get("quant_method") or ("modelopt" if told.get("quant_algo") else "an unnamed form")).lower()
    if method == "modelopt":
        algorithm = str(told.get("quant_algo") or "unknown").upper()
        # Two names of one thing.
        return f"ModelOpt {'FP8_BLOCK_SCALES' if algorithm == 'FP8_PB_WO' else algorithm}"
    return "fp8_block" if method == "fp8" and told.get("weight_block_size") else method


_QUANTS = {
    "FP8": "fp8",
    "FP8_BLOCK_SCALES": "fp8_block",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8_rowwise",
    "NVFP4": "nvfp4",
    "W4A16_AWQ": "awq",
    "W4A8_AWQ": "w4a8_awq",
}
