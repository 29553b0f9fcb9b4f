"""Quantisations: how large they leave the weights, what they need, and in which forms checkpoints come in them.

Sizes are those of TensorRT-LLM's own layers: its quantisation leaves embeddings, the output projection, routers, norms
and biases alone (`quantize_layers`' default `exclude_modules`). Scales of one number a channel or a tensor are left
out; they are less than a thousandth.

Sources of what TensorRT-LLM takes: `ModelLoader._update_from_hf_quant_config` in tensorrt_llm/llmapi/llm_utils.py,
which both flows go through, `ModelConfig.load_hf_quant_config` in tensorrt_llm/_torch/model_config.py, `quantize` in
tensorrt_llm/quantization/quantize.py, and the checks at the beginning of `build` in tensorrt_llm/builder.py. None of
it was run here.
"""

from __future__ import annotations

import msgspec

from openai_bls.builder.tensorrt_llm.gpus import NumberFormat
from openai_bls.builder.tensorrt_llm.hf_config import MODELOPT_FILE, StoredAs
from openai_bls.engines.tensorrt_llm.interface import Flow, KvCacheDtype, Quant

_GROUP = 128
"""Weights that share a scale in AWQ and GPTQ: `QuantConfig.group_size`."""
_HALF = 2
"""Bytes of such a scale."""


class Quantisation(msgspec.Struct, frozen=True):
    """One way to store and multiply the weights."""

    algorithm: str
    """Name in TensorRT-LLM's `QuantAlgo`."""
    bytes_per_weight: float
    """Scales included."""
    number_format: NumberFormat | None = None
    """What the GPU must compute in; None multiplies in the model's own type."""
    quantised_activations: bool = False
    calibrates: bool = False
    """Whether the build runs the unquantised model over a dataset first."""
    not_on_blackwell: bool = False
    """Whether TensorRT-LLM refuses to build an engine with it for GPUs of 10.x."""
    refusal: str = ""
    """Why no build can make it of a checkpoint, and what to do; empty if one can."""


_GPTQ = "TensorRT-LLM's LLM API neither makes nor reads GPTQ weights: give the original checkpoint, with --quant "

QUANTISATIONS: dict[Quant, Quantisation] = {
    "fp8": Quantisation("FP8", 1, "fp8", quantised_activations=True, calibrates=True),
    "fp8_rowwise": Quantisation(
        "FP8_PER_CHANNEL_PER_TOKEN", 1, "fp8", quantised_activations=True, not_on_blackwell=True
    ),
    "fp8_block": Quantisation(
        "FP8_BLOCK_SCALES",
        1,
        "fp8",
        quantised_activations=True,
        refusal="TensorRT-LLM makes no such weights: give a checkpoint that has them (DeepSeek's form), with "
        "--flow pytorch and without --quant",
    ),
    "int8_weight_only": Quantisation("W8A16", 1, not_on_blackwell=True),
    "int4_weight_only": Quantisation("W4A16", 0.5, not_on_blackwell=True),
    "int8_sq": Quantisation(
        "W8A8_SQ_PER_CHANNEL", 1, "int8", quantised_activations=True, calibrates=True, not_on_blackwell=True
    ),
    "awq": Quantisation("W4A16_AWQ", 0.5 + _HALF / _GROUP, calibrates=True, not_on_blackwell=True),
    "w4a8_awq": Quantisation(
        "W4A8_AWQ", 0.5 + _HALF / _GROUP, "fp8", quantised_activations=True, calibrates=True, not_on_blackwell=True
    ),
    # A zero point beside each scale.
    "gptq": Quantisation("W4A16_GPTQ", 0.5 + 2 * _HALF / _GROUP, refusal=f"{_GPTQ}awq or int4_weight_only"),
    "int8_gptq": Quantisation("W8A16_GPTQ", 1 + 2 * _HALF / _GROUP, refusal=f"{_GPTQ}int8_weight_only"),
    # A scale of one byte for 16 weights.
    "nvfp4": Quantisation("NVFP4", 0.5 + 1 / 16, "nvfp4", quantised_activations=True, calibrates=True),
}

BUILT: tuple[Quant, ...] = tuple(name for name, how in QUANTISATIONS.items() if not how.refusal)
"""What `--quant` can be."""

KV_CACHE_BYTES: dict[KvCacheDtype, float] = {"fp8": 1, "int8": 1, "nvfp4": 0.5 + 1 / 16}
"""Of an element of the KV cache; `auto` has the model's own type."""
KV_CACHE_FORMAT: dict[KvCacheDtype, NumberFormat] = {"fp8": "fp8", "int8": "int8", "nvfp4": "nvfp4"}
"""What the GPU must have for it."""


class CheckpointForm(msgspec.Struct, frozen=True, kw_only=True):
    """A form in which checkpoints come quantised."""

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


def checkpoint_refusal(stored: StoredAs, flow: Flow, version: tuple[int, int]) -> str | None:
    """Why TensorRT-LLM does not take a checkpoint that is quantised so, and what to do; None if it does.

    Args:
        stored: how it is quantised.
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
        quantise = f" with --quant {form.instead}" if form.instead else ""
        return (
            f"the checkpoint is quantised already, as {form.title}, and TensorRT-LLM builds no engine of that: "
            f"use {loaded}{original}{quantise}"
        )
    if since is not None and since <= version:
        return _refusal_of_inline(stored, form, version)
    later = f"TensorRT-LLM {since[0]}.{since[1]} or later, " if since is not None else ""
    return (
        f"the checkpoint is quantised already, as {form.title}, and TensorRT-LLM {version[0]}.{version[1]} does not "
        f"load that: use {later}{original}, or one that ModelOpt quantised (FP8, NVFP4)"
    )


def _refusal_of_inline(stored: StoredAs, form: CheckpointForm, version: tuple[int, int]) -> str | None:
    if not stored.inline or version >= INLINE_SINCE:
        return None
    return (
        f"the checkpoint is quantised already, as {form.title}, and TensorRT-LLM {version[0]}.{version[1]} looks that "
        f"up in {MODELOPT_FILE}, which is missing: put it back beside config.json"
    )


def kv_cache_refusal(stored: StoredAs, asked: KvCacheDtype) -> str | None:
    """Why this KV cache does not go with a checkpoint that is quantised so; None if it does."""
    if asked in ("auto", stored.kv_cache):
        return None
    if stored.kv_cache:
        return f"the checkpoint was quantised for a KV cache in {stored.kv_cache}: leave --kv-cache-dtype {asked} out"
    if asked == "int8":
        return (
            "--kv-cache-dtype int8 needs scales that a checkpoint which is quantised already does not have: "
            "give fp8, or leave it out"
        )
    return None
