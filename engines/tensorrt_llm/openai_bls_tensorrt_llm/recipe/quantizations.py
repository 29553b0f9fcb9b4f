"""Quantizations that TensorRT-LLM has: size of the weights, what the GPU must compute in, whether a build calibrates.

Sizes are those of TensorRT-LLM's own layers: its quantization leaves embeddings, the output projection, routers, norms
and biases alone (`quantize_layers`' default `exclude_modules`). Scales of one number per channel or tensor are left
out; they are less than a thousandth. Sources: `quantize` in tensorrt_llm/quantization/quantize.py, and the checks at
the beginning of `build` in tensorrt_llm/builder.py. None of it was run here.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from openai_bls_tensorrt_llm.installed.interface import KvCacheDtype, Quant

NumberFormat = Literal["bfloat16", "int8", "fp8", "nvfp4"]
"""Number formats of a GPU's tensor cores."""

_GROUP = 128
"""Weights that share a scale in AWQ and GPTQ: `QuantConfig.group_size`."""
_HALF = 2
"""Bytes of such a scale."""


class Quantization(msgspec.Struct, frozen=True):
    """One way to store and multiply the weights."""

    algorithm: str
    """Name in TensorRT-LLM's `QuantAlgo`."""
    bytes_per_weight: float
    """Scales included."""
    number_format: NumberFormat | None = None
    """Format that the GPU must compute in; None multiplies in the model's own type."""
    calibrates: bool = False
    """The build runs the unquantized model over a dataset first."""
    not_on_blackwell: bool = False
    """TensorRT-LLM refuses to build an engine with it for GPUs of 10.x."""
    experts_only: bool = False
    """Attention and dense MLPs keep the model's own type."""
    refusal: str = ""
    """Refusal to make it of a checkpoint, and what to do; empty if a build can."""


_GPTQ = "TensorRT-LLM's LLM API neither makes nor reads GPTQ weights: give the original checkpoint, with --quant "

QUANTIZATIONS: dict[Quant, Quantization] = {
    "fp8": Quantization("FP8", 1, "fp8", calibrates=True),
    "fp8_rowwise": Quantization("FP8_PER_CHANNEL_PER_TOKEN", 1, "fp8", not_on_blackwell=True),
    "fp8_block": Quantization(
        "FP8_BLOCK_SCALES",
        1,
        "fp8",
        refusal="TensorRT-LLM makes no such weights: give a checkpoint that has them (DeepSeek's form), with "
        "--flow pytorch and without --quant",
    ),
    "int8_weight_only": Quantization("W8A16", 1, not_on_blackwell=True),
    "int4_weight_only": Quantization("W4A16", 0.5, not_on_blackwell=True),
    "int8_sq": Quantization("W8A8_SQ_PER_CHANNEL", 1, "int8", calibrates=True, not_on_blackwell=True),
    "awq": Quantization("W4A16_AWQ", 0.5 + _HALF / _GROUP, calibrates=True, not_on_blackwell=True),
    "w4a8_awq": Quantization("W4A8_AWQ", 0.5 + _HALF / _GROUP, "fp8", calibrates=True, not_on_blackwell=True),
    # A zero point beside each scale.
    "gptq": Quantization("W4A16_GPTQ", 0.5 + 2 * _HALF / _GROUP, refusal=f"{_GPTQ}awq or int4_weight_only"),
    "int8_gptq": Quantization("W8A16_GPTQ", 1 + 2 * _HALF / _GROUP, refusal=f"{_GPTQ}int8_weight_only"),
    # A scale of one byte for 16 weights.
    "nvfp4": Quantization("NVFP4", 0.5 + 1 / 16, "nvfp4", calibrates=True),
}

CHECKPOINT_ONLY: dict[str, Quantization] = {
    # A scale of one byte for 32 weights.
    "mxfp4": Quantization("W4A16_MXFP4", 0.5 + 1 / 32, experts_only=True)
}
"""Quantizations that no `--quant` names, by the words of `checkpoint.quantized.quantization_of`."""

BUILT: tuple[Quant, ...] = tuple(name for name, how in QUANTIZATIONS.items() if not how.refusal)
"""Values of `--quant`."""

KV_CACHE_BYTES: dict[KvCacheDtype, float] = {"fp8": 1, "int8": 1, "nvfp4": 0.5 + 1 / 16}
"""Bytes per element of the KV cache; `auto` has the model's own type."""
KV_CACHE_FORMAT: dict[KvCacheDtype, NumberFormat] = {"fp8": "fp8", "int8": "int8", "nvfp4": "nvfp4"}
"""Number format of the GPU's tensor cores that a quantized KV cache needs."""
