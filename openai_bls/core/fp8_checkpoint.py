"""FP8 checkpoints as they are: weights in e4m3 with a scale for each output or for the whole weight.

Three tools write them. config.json of LLM Compressor says `compressed-tensors` in the format `float-quantized`, that of
FBGEMM `fbgemm_fp8`, and that of AutoFP8 and transformers `fp8` without a `weight_block_size`. Activations are quantized
here as they come, so the scales that some checkpoints have for them and for an FP8 KV cache are not used.

Imports no torch: the builder asks before it loads anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from openai_bls.core.checkpoint import Tensors, text_config
from openai_bls.core.manifest import EngineLoadError

_WEIGHT = ".weight"
_SCALES = ("_scale", "_scale_inv")
"""Ends of a scale's name after that of its weight; both are multiplied by."""


def is_served(told: Mapping[str, Any]) -> bool:
    """True if `told`, config.json's `quantization_config`, is a form that is served as it is."""
    method = told.get("quant_method")
    if method == "compressed-tensors":
        groups = told.get("config_groups") or {}
        sparsity = (told.get("sparsity_config") or {}).get("format", "dense")
        return told.get("format") == "float-quantized" and sparsity == "dense" and bool(groups) and all(
            _is_fp8_group(group) for group in groups.values()
        )  # fmt: skip
    return method == "fbgemm_fp8" or (method == "fp8" and not told.get("weight_block_size"))


def _is_fp8_group(group: Mapping[str, Any]) -> bool:
    weights, inputs = group.get("weights") or {}, group.get("input_activations")
    return (
        (weights.get("type"), weights.get("num_bits")) == ("float", 8)
        and weights.get("strategy") in ("channel", "tensor")
        and weights.get("symmetric", True)
        and not weights.get("actorder")
        and (inputs is None or (inputs.get("type"), inputs.get("num_bits")) == ("float", 8))
    )


def quantization(config: dict[str, Any]) -> dict[str, Any] | None:
    """config.json's `quantization_config` of a checkpoint that is served as it is; None for any other."""
    told = text_config(config).get("quantization_config")
    return told if isinstance(told, dict) and is_served(told) else None


def scale_names(tensors: Tensors) -> dict[str, str]:
    """Name of each weight in FP8 → that of its scale.

    Raises:
        EngineLoadError: a tensor is in FP8 and no weight with a scale for each output or for all of them.
    """
    found: dict[str, str] = {}
    for name, (dtype, shape) in tensors.items():
        if not dtype.startswith("F8_"):
            continue
        scale = next((name + end for end in _SCALES if name + end in tensors), None)
        if dtype != "F8_E4M3" or not name.endswith(_WEIGHT) or len(shape) != 2:
            raise EngineLoadError(f"the checkpoint's {name} is {dtype}, and FP8 is served in linear layers, as e4m3")
        if scale is None:
            raise EngineLoadError(f"the checkpoint's {name} is in FP8 without a scale ({name}_scale)")
        if math.prod(tensors[scale][1]) not in (1, shape[0]):
            raise EngineLoadError(
                f"the checkpoint's {scale} has the shape {list(tensors[scale][1])}: one number for each of "
                f"{shape[0]} outputs is served, or one for all"
            )
        found[name] = scale
    if not found:
        raise EngineLoadError("config.json says that the weights are in FP8, and none of them is")
    return found
