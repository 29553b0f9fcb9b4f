"""Chunked context: prompts that fit one step of the engine, and those that take several.

Without chunked context TensorRT-LLM takes no prompt longer than `max_num_tokens`: the C++ runtime cuts its
`maxInputLen` down to that (`TrtGptModel` in cpp/tensorrt_llm/batch_manager/trtGptModel.h), and the PyTorch flow raises
(`_check_arguments` in tensorrt_llm/llmapi/llm.py). A TensorRT engine can do chunked context only if it was built with
paged context FMHA, which is on by default and which `build` in tensorrt_llm/builder.py turns off with a warning in the
cases below. None of it was run here.
"""

from __future__ import annotations

import msgspec

from openai_bls_tensorrt_llm.installed.interface import Flow, KvCacheDtype
from openai_bls_tensorrt_llm.recipe.gpus import Gpu
from openai_bls_tensorrt_llm.recipe.options import TensorRtLlmOptions

_QUANTS_WITH_FP8 = ("fp8", "w4a8_awq", "nvfp4")
_AMPERE = (8, 0)


class Prompts(msgspec.Struct, frozen=True):
    """Length of prompts, and whether they take several steps."""

    max_input_len: int
    chunked: bool | None
    """The setting `enable_chunked_context`; None leaves TensorRT-LLM's own default, which is false."""
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def without_paged_context(
    own: TensorRtLlmOptions, flow: Flow, quant: str, kv_cache_dtype: KvCacheDtype, gpu: Gpu | None
) -> str:
    """Reason for having no paged context FMHA, as a clause; empty if an engine has it.

    `quant` and `kv_cache_dtype` are those that will run, the checkpoint's own included.
    """
    if flow == "pytorch":
        return ""
    for name, off in (("use_paged_context_fmha", "disable"), ("context_fmha", "disable"), ("streamingllm", "enable")):
        if own.plugins.get(name) == off:
            return f"{name} is {off}d"
    if kv_cache_dtype == "int8":
        return "TensorRT-LLM has none with an int8 KV cache"
    if kv_cache_dtype == "fp8" and quant not in _QUANTS_WITH_FP8:
        return f"TensorRT-LLM has none with an fp8 KV cache unless --quant is {', '.join(_QUANTS_WITH_FP8)}"
    if gpu is not None and gpu.compute_capability and gpu.compute_capability < _AMPERE:
        return f"{gpu.name} ({gpu.capability}) is older than Ampere (8.0)"
    return ""


def fp8_context_refusal(own: TensorRtLlmOptions, quant: str, kv_cache_dtype: KvCacheDtype) -> str | None:
    """Refusal of --use-fp8-context-fmha where `build` would turn it off with a warning; None where it has an effect."""
    if own.plugins.get("use_fp8_context_fmha") != "enable":
        return None
    needs = "--use-fp8-context-fmha has no effect here: TensorRT-LLM turns it off"
    if own.plugins.get("context_fmha") == "disable":
        return f"{needs} together with context_fmha; leave one of the two out"
    if quant not in _QUANTS_WITH_FP8:
        return f"{needs} unless --quant is {', '.join(_QUANTS_WITH_FP8)}; leave it out, or give one of these"
    if kv_cache_dtype == "fp8" or own.plugins.get("use_paged_context_fmha") == "disable":
        return None
    return (
        f"{needs} unless the KV cache is in fp8; give --kv-cache-dtype fp8 (or --use-paged-context-fmha disable) too, "
        "or leave it out"
    )


def prompts(own: TensorRtLlmOptions, max_input_len: int, max_num_tokens: int, without_paged: str) -> Prompts:
    """Longest prompt, and the setting of chunked context, for steps of `max_num_tokens` tokens."""
    asked = own.settings.enable_chunked_context
    reuse = own.settings.enable_kv_cache_reuse
    problems: list[str] = []
    notes: list[str] = []
    if without_paged:
        needs = f"needs paged context FMHA, and {without_paged}"
        if asked:
            problems.append(f"--enable-chunked-context {needs}: leave it out, or change that")
        if reuse:
            problems.append(f"--enable-kv-cache-reuse {needs}: leave it out, or change that")
        elif reuse is None:
            notes.append(f"prompts that begin alike do not share their KV cache: that {needs}")
    if max_input_len <= max_num_tokens or (asked and not without_paged):
        return Prompts(max_input_len, asked, tuple(problems), tuple(notes))
    if asked is None and not without_paged:
        notes.append(
            f"prompts of more than {max_num_tokens:,} tokens (--max-num-tokens) are taken in over several steps: the "
            "build turns enable_chunked_context on, in config.pbtxt"
        )
        return Prompts(max_input_len, True, tuple(problems), tuple(notes))
    why = f"that {needs}" if without_paged else "enable_chunked_context is off"
    if own.max_input_len is not None:
        problems.append(
            f"--max-input-len {own.max_input_len} is more than the {max_num_tokens} tokens of one step, and prompts "
            f"cannot be taken in over several ({why}): lower it, or raise --max-num-tokens"
        )
        return Prompts(max_input_len, asked, tuple(problems), tuple(notes))
    notes.append(
        f"prompts may have {max_num_tokens:,} tokens at most, those of one step, since they cannot be taken in over "
        f"several ({why}): raise --max-num-tokens for longer ones"
    )
    return Prompts(max_num_tokens, asked, tuple(problems), tuple(notes))
