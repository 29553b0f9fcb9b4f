"""Abilities of TensorRT-LLM by version, as far as its signatures do not tell.

Sources: tests_tensorrt_llm/contracts, the release notes of TensorRT-LLM, and its pull requests and issues where they
are named.
"""

from __future__ import annotations

from openai_bls.core.manifest import EngineLoadError
from openai_bls.core.nearest import nearest
from openai_bls_tensorrt_llm.installed.interface import Flow, GuidedDecodingBackend, KvCacheDtype, Version

OLDEST = Version(0, 20)
_PYTORCH_SINCE = Version(1, 0)
_STRUCTURAL_TAGS_SINCE = Version(1, 2)
"""First with structural tags (PyTorch). Before, they had another form; the C++ decoder of `tensorrt` refuses them."""
_ONE_SAMPLER_SINCE = Version(1, 3)
"""TorchSampler draws all requests from then on; before, the C++ decoder drew those that it could not."""
_TENSORRT_FLOW_END = Version(1, 3, 0, 21)
# When it came to main, and which candidate main was then, is public; what each candidate was cut from is not. So this
# is the candidate that has it for certain.
_PENALTIES_SINCE = Version(1, 3, 0, 24)
"""TorchSampler penalizes from then on (pull request 16485); before, it takes penalties and passes them over."""
_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")

KNOWN = "0.20 to 1.4"
"""Versions of which the names that are called are recorded, as far as their public sources could be read."""
_ENGINES_RECORDED = (Version(0, 20), Version(1, 3))
"""Versions whose engine flow is recorded, the second excluded."""

MAX_TOP_K = 1024
"""Largest `top_k` of the C++ decoder, which cuts larger values down to it (`TOP_K_MAX`)."""


_TYPES = ("auto", "float16", "float32", "bfloat16", "int32", "disable")
_SWITCH = ("enable", "disable")
_FP8 = ("fp8", "disable")

# The same in all versions that build engines, 0.20 to 1.2; a test holds it against the recorded tables.
_PLUGINS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            "bert_attention_plugin", "gpt_attention_plugin", "fp8_rowwise_gemm_plugin", "qserve_gemm_plugin",
            "identity_plugin", "nccl_plugin", "lora_plugin", "weight_only_groupwise_quant_matmul_plugin",
            "weight_only_quant_matmul_plugin", "smooth_quant_gemm_plugin", "layernorm_quantization_plugin",
            "rmsnorm_quantization_plugin", "moe_plugin", "mamba_conv1d_plugin",
        ),
        _TYPES,
    ),
    **dict.fromkeys(
        (
            "dora_plugin", "smooth_quant_plugins", "quantize_per_token_plugin", "quantize_tensor_plugin",
            "context_fmha", "bert_context_fmha_fp32_acc", "paged_kv_cache", "remove_input_padding",
            "norm_quant_fusion", "reduce_fusion", "user_buffer", "use_paged_context_fmha", "use_fp8_context_fmha",
            "fuse_fp4_quant", "multiple_profiles", "paged_state", "streamingllm", "manage_weights", "use_fused_mlp",
            "pp_reduce_scatter",
        ),
        _SWITCH,
    ),
    **dict.fromkeys(("gemm_swiglu_plugin", "low_latency_gemm_plugin", "low_latency_gemm_swiglu_plugin"), _FP8),
    "gemm_plugin": ("auto", "float16", "float32", "bfloat16", "int32", "fp8", "nvfp4", "disable"),
    "gemm_allreduce_plugin": ("float16", "bfloat16", "disable"),
    "tokens_per_block": (),
}  # fmt: skip
"""Options of `PluginConfig`, with the words that each takes on the command line; one without words takes a number."""

_GONE = {
    "use_custom_all_reduce": "TensorRT-LLM chooses the all-reduce by itself: leave it out",
    "paged_context_fmha": "it is called use_paged_context_fmha",
}
"""Names of older guides → what to write instead."""


def plugin_refusal(name: str, text: str, version: Version) -> str | None:
    """Refusal of a value of `PluginConfig`; None if it is valid, or if the version is none of the recorded ones."""
    if not _ENGINES_RECORDED[0] <= version < _ENGINES_RECORDED[1]:
        return None
    allowed = _PLUGINS.get(name)
    if allowed is None:
        near = nearest(name, _PLUGINS)
        why = _GONE.get(name, f"there is {near}" if near else "see PluginConfig in its documentation")
        return f"TensorRT-LLM {version} has no plugin option {name}: {why}"
    if not allowed:
        return None if text.isdecimal() and int(text) else f"plugin option {name} is {text!r}: give a number of tokens"
    return None if text in allowed else f"plugin option {name} is {text!r}: give one of {', '.join(allowed)}"


def require_flow(flow: Flow, version: Version, version_text: str) -> None:
    """Raise `EngineLoadError` if this version does not have the flow."""
    if flow == "tensorrt" and version >= _TENSORRT_FLOW_END:
        raise EngineLoadError(
            f"TensorRT-LLM {version_text} builds and runs no TensorRT engines any more (1.3.0rc21 took them out): use "
            "an image with 1.2, or build with --flow pytorch, which serves the checkpoint itself"
        )
    if flow == "pytorch" and version < _PYTORCH_SINCE:
        raise EngineLoadError(
            f"TensorRT-LLM {version_text} serves checkpoints by PyTorch as an experiment only: use 1.0 or later, or "
            "build with --flow tensorrt"
        )


def grammar_kinds(flow: Flow, backend: GuidedDecodingBackend, version: Version) -> tuple[str, ...]:
    """Values of `engine_types.Grammar.kind` that `GuidedDecodingParams` can carry."""
    match backend:
        case "xgrammar":
            tags = flow == "pytorch" and version >= _STRUCTURAL_TAGS_SINCE
            return ("json_schema", "regex", "ebnf", "structural_tag") if tags else ("json_schema", "regex", "ebnf")
        case "llguidance":
            # Its `grammar` is read as Lark.
            return ("json_schema", "regex", "lark") if flow == "pytorch" else ()
        case _:
            return ()


def kv_cache_dtypes(flow: Flow, version: Version) -> tuple[KvCacheDtype, ...]:
    """Types that a KV cache can have: built into an engine, or by `KvCacheConfig.dtype` when a checkpoint is loaded."""
    if flow == "tensorrt":
        # ModelOpt makes no scales of others there: `QuantConfig._get_modelopt_kv_cache_dtype`.
        return ("auto", "fp8", "int8")
    return ("auto", "fp8", "nvfp4") if version >= _ONE_SAMPLER_SINCE else ("auto", "fp8")


def cpp_sampler(version: Version) -> bool:
    """True if the PyTorch flow needs `TRTLLMSampler`, the C++ decoder, for penalties, biases and seeds."""
    return version < _ONE_SAMPLER_SINCE


def max_logprobs(flow: Flow, version: Version) -> int:
    """Largest `SamplingParams.logprobs`. The C++ decoder in the PyTorch flow gives the sampled token's own alone."""
    return 1 if flow == "pytorch" and cpp_sampler(version) else 20


def sampling_fields(flow: Flow, version: Version) -> tuple[str, ...]:
    """Fields of `engine_types.SamplingParams` and `GenerationRequest` that are honoured whatever the model."""
    by_cpp = flow == "tensorrt" or cpp_sampler(version)
    return (
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        # TorchSampler takes a seed from 1.3.0rc25 on (pull request 17172), but FlashInfer draws a whole batch by that
        # of its first row (its pull request 4861, open). Main has got a kernel since that draws each row by its own;
        # it is not known from which candidate on.
        *(("seed",) if by_cpp else ()),
        *(_PENALTIES if by_cpp or version >= _PENALTIES_SINCE else ()),
        "logit_bias",
        "stop_token_ids",
        "bad_words",
        "min_tokens",
        "logprobs",
    )
