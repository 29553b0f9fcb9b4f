"""Quantized checkpoints that TensorRT-LLM takes, and refusals of the others.

Sources: `ModelLoader._update_from_hf_quant_config` in tensorrt_llm/llmapi/llm_utils.py, which both flows go through,
and `ModelConfig.load_hf_quant_config` in tensorrt_llm/_torch/model_config.py. None of it was run here.
"""

from __future__ import annotations

from openai_bls.builder.checkpoint.config import MODELOPT_FILE
from openai_bls.builder.checkpoint.quantized import CHECKPOINT_FORMS, CheckpointForm, StoredAs
from openai_bls_tensorrt_llm.installed.interface import Flow, KvCacheDtype

INLINE_SINCE = (1, 3)
"""The first release that reads what ModelOpt wrote into config.json, if `MODELOPT_FILE` is missing."""


def checkpoint_refusal(stored: StoredAs, flow: Flow, version: tuple[int, int]) -> str | None:
    """Refusal of a checkpoint that is quantized so, and what to do; None if TensorRT-LLM takes it."""
    form = CHECKPOINT_FORMS.get(stored.form, CheckpointForm(stored.form))
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
    """Refusal of this KV cache with a checkpoint that is quantized so; None if they work together."""
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
