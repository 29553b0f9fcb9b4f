"""Checkpoints that are quantized already: in which forms they come, and which of these TensorRT-LLM takes.

Sources: `ModelLoader._update_from_hf_quant_config` in tensorrt_llm/llmapi/llm_utils.py, which both flows go through,
and `ModelConfig.load_hf_quant_config` in tensorrt_llm/_torch/model_config.py. None of it was run here.
"""

from __future__ import annotations

from typing import Any

import msgspec

from openai_bls.builder.tensorrt_llm.hf_config import MODELOPT_FILE
from openai_bls.engines.tensorrt_llm.interface import Flow, KvCacheDtype


class StoredAs(msgspec.Struct, frozen=True):
    """How a checkpoint is quantized, in its own words."""

    form: str
    """Of `quantization.CHECKPOINT_FORMS` if it is one of them: `gptq`, `fp8_block`, `ModelOpt NVFP4`."""
    kv_cache: str = ""
    """What the KV cache is quantized to, in the words of `contract.KvCacheDtype`; empty if it is not told."""
    inline: bool = False
    """Whether ModelOpt's words stand in config.json, and not in `MODELOPT_FILE`."""


class CheckpointForm(msgspec.Struct, frozen=True, kw_only=True):
    """A form in which checkpoints come quantized."""

    title: str
    """As people call it."""
    tensorrt: bool = False
    """Whether an engine can be built of it (flow `tensorrt`)."""
    pytorch_since: tuple[int, int] | None = None
    """The first release whose PyTorch flow loads it, 1.0 or later; None if none does."""
    instead: str = ""
    """`--quant` that makes something like it of the original checkpoint."""


CHECKPOINT_FORMS: dict[str, CheckpointForm] = {
    "ModelOpt FP8": CheckpointForm(title="ModelOpt's FP8", tensorrt=True, pytorch_since=(1, 0), instead="fp8"),
    "ModelOpt NVFP4": CheckpointForm(title="ModelOpt's NVFP4", tensorrt=True, pytorch_since=(1, 0), instead="nvfp4"),
    "ModelOpt W4A16_AWQ": CheckpointForm(title="ModelOpt's AWQ", pytorch_since=(1, 0), instead="awq"),
    "ModelOpt W4A8_AWQ": CheckpointForm(title="ModelOpt's W4A8 AWQ", pytorch_since=(1, 0), instead="w4a8_awq"),
    "ModelOpt FP8_BLOCK_SCALES": CheckpointForm(title="ModelOpt's FP8 in blocks", pytorch_since=(1, 0), instead="fp8"),
    "ModelOpt FP8_PER_CHANNEL_PER_TOKEN": CheckpointForm(
        title="ModelOpt's FP8 by rows", pytorch_since=(1, 0), instead="fp8_rowwise"
    ),
    "ModelOpt MIXED_PRECISION": CheckpointForm(title="ModelOpt's mixed precision", pytorch_since=(1, 0)),
    "fp8_block": CheckpointForm(title="FP8 in blocks (DeepSeek, Qwen3-FP8)", pytorch_since=(1, 0), instead="fp8"),
    "mxfp4": CheckpointForm(title="MXFP4 (gpt-oss)", pytorch_since=(1, 0)),
    "fp8": CheckpointForm(title="FP8 of other tools", pytorch_since=(1, 3), instead="fp8"),
    "compressed-tensors": CheckpointForm(
        title="compressed-tensors (LLM Compressor)", pytorch_since=(1, 3), instead="fp8"
    ),
    "gptq": CheckpointForm(title="GPTQ (AutoGPTQ, GPTQModel)", instead="int4_weight_only"),
    "awq": CheckpointForm(title="AutoAWQ", instead="awq"),
    "bitsandbytes": CheckpointForm(title="bitsandbytes", instead="int8_weight_only"),
}
"""By the words of `hf_config.stored_as`."""

INLINE_SINCE = (1, 3)
"""The first release that reads what ModelOpt wrote into config.json, if `MODELOPT_FILE` is missing."""


def quantization_of(config: dict[str, Any]) -> str:
    """What the checkpoint is quantized with, in the words of `contract.Quant` where it is one of them.

    Empty if it is not.
    """
    told = config.get("quantization_config")
    if not isinstance(told, dict):
        return ""
    method = _method(told)
    if method in _BY_BITS:
        bits = told.get("bits", told.get("w_bit", 4))
        return _BY_BITS[method].get(str(bits), f"{method} with {bits} bits")
    if method == "fp8":
        return "fp8_block" if told.get("weight_block_size") else "fp8"
    if method == "modelopt":
        algorithm = _algorithm(told)
        return _MODELOPT.get(algorithm, algorithm)
    return method


def stored_as(config: dict[str, Any]) -> StoredAs | None:
    """How the checkpoint is quantized; None if it is not."""
    told = config.get("quantization_config")
    if not isinstance(told, dict):
        return None
    method = _method(told)
    if method == "modelopt":
        cache = str(told.get("kv_cache_quant_algo") or "").lower()
        return StoredAs(
            f"ModelOpt {_algorithm(told)}", "" if cache in ("none", "null") else cache, "told_by" not in told
        )
    return StoredAs("fp8_block" if method == "fp8" and told.get("weight_block_size") else method)


def _method(told: dict[str, Any]) -> str:
    return str(told.get("quant_method") or ("modelopt" if told.get("quant_algo") else "an unnamed form")).lower()


def _algorithm(told: dict[str, Any]) -> str:
    algorithm = str(told.get("quant_algo") or "unknown").upper()
    # Two names of one thing.
    return "FP8_BLOCK_SCALES" if algorithm == "FP8_PB_WO" else algorithm


_BY_BITS = {"gptq": {"4": "gptq", "8": "int8_gptq"}, "awq": {"4": "awq"}}
_MODELOPT = {
    "FP8": "fp8",
    "FP8_BLOCK_SCALES": "fp8_block",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8_rowwise",
    "NVFP4": "nvfp4",
    "W4A16_AWQ": "awq",
    "W4A8_AWQ": "w4a8_awq",
}


def checkpoint_refusal(stored: StoredAs, flow: Flow, version: tuple[int, int]) -> str | None:
    """Why TensorRT-LLM does not take a checkpoint that is quantized so, and what to do; None if it does.

    Args:
        stored: how it is quantized.
        flow: of TensorRT-LLM.
        version: major and minor.
    """
    form = CHECKPOINT_FORMS.get(stored.form, CheckpointForm(title=stored.form))
    since = form.pytorch_since
    original = "the original checkpoint"
    if flow == "tensorrt":
        if form.tensorrt:
            return _refusal_of_inline(stored, form, version)
        loaded = "--flow pytorch, or " if since is not None and since <= version else ""
        quantize = f" with --quant {form.instead}" if form.instead else ""
        return (
            f"the checkpoint is quantized already, as {form.title}, and TensorRT-LLM builds no engine of that: "
            f"use {loaded}{original}{quantize}"
        )
    if since is not None and since <= version:
        return _refusal_of_inline(stored, form, version)
    later = f"TensorRT-LLM {since[0]}.{since[1]} or later, " if since is not None else ""
    return (
        f"the checkpoint is quantized already, as {form.title}, and TensorRT-LLM {version[0]}.{version[1]} does not "
        f"load that: use {later}{original}, or one that ModelOpt quantized (FP8, NVFP4)"
    )


def _refusal_of_inline(stored: StoredAs, form: CheckpointForm, version: tuple[int, int]) -> str | None:
    if not stored.inline or version >= INLINE_SINCE:
        return None
    return (
        f"the checkpoint is quantized already, as {form.title}, and TensorRT-LLM {version[0]}.{version[1]} looks that "
        f"up in {MODELOPT_FILE}, which is missing: put it back beside config.json"
    )


def kv_cache_refusal(stored: StoredAs, asked: KvCacheDtype) -> str | None:
    """Why this KV cache does not go with a checkpoint that is quantized so; None if it does."""
    if asked in ("auto", stored.kv_cache):
        return None
    if stored.kv_cache:
        return f"the checkpoint was quantized for a KV cache in {stored.kv_cache}: leave --kv-cache-dtype {asked} out"
    if asked == "int8":
        return (
            "--kv-cache-dtype int8 needs scales that a checkpoint which is quantized already does not have: "
            "give fp8, or leave it out"
        )
    return None
