"""Plan of an engine: flow, lengths, and whether model, machine and options go together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import msgspec

from openai_bls.builder.tensorrt_llm import chatglm, chunking, families
from openai_bls.builder.tensorrt_llm.estimate import estimate
from openai_bls.builder.tensorrt_llm.estimate_text import report, sentences
from openai_bls.builder.tensorrt_llm.flows import default_flow
from openai_bls.builder.tensorrt_llm.gpus import Gpu, find_gpu
from openai_bls.builder.tensorrt_llm.options import TensorRtLlmOptions, with_flow
from openai_bls.builder.tensorrt_llm.quantization import BUILT, QUANTIZATIONS
from openai_bls.builder.tensorrt_llm.quantized_checkpoint import (
    StoredAs,
    checkpoint_refusal,
    kv_cache_refusal,
    quantization_of,
    stored_as,
)
from openai_bls.builder.tensorrt_llm.shapes import ModelShape, shape_of
from openai_bls.builder.tensorrt_llm.sizes import Estimate, EstimateOptions
from openai_bls.core.manifest import Dtype, EngineLoadError
from openai_bls.engines.tensorrt_llm import llm_args, speculation, versions
from openai_bls.engines.tensorrt_llm.interface import Flow, InstalledGpu, KvCacheDtype, Version

DEFAULT_MODEL_LEN = 2048
"""Tokens of prompt and output, where the checkpoint does not say."""
DEFAULT_NUM_TOKENS = 8192
"""The default of `BuildConfig.max_num_tokens`, and of the PyTorch flow's since 1.2."""
DEFAULT_GPU = "H100"
"""Estimated for where there is none."""
NEWEST = Version(1, 2, 1)
"""Taken for granted where none is installed: that of the newest Triton image."""
_MIB = 1 << 20
_DEFAULT_FREE_FRACTION = 0.9
# With other weights, or with another KV cache under paged context FMHA, `build` in tensorrt_llm/builder.py turns it off
# with a warning.
_QUANTS_WITH_FP8_CONTEXT = ("fp8", "w4a8_awq", "nvfp4")
_CALIBRATING = tuple(name for name in BUILT if QUANTIZATIONS[name].calibrates)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Engine to plan: the options of every engine, and those of TensorRT-LLM."""

    model: str
    """Checkpoint as on the command line."""
    config: dict[str, Any]
    """Contents of the checkpoint's config.json."""
    dtype: Dtype
    max_seq_len: int | None
    max_batch_size: int
    trust_remote_code: bool
    own: TensorRtLlmOptions
    folder: Path | None = None
    """The checkpoint's, where it is on this machine."""
    checkpoint_bytes: int | None = None
    """Bytes of its weights; None where they are not on this machine."""
    architectures: Mapping[Flow, frozenset[str]] | None = None
    """Architectures that the installed TensorRT-LLM has in each flow; None if it was not asked."""
    arguments_refusal: str = ""
    """Refusal of `own.extra_llm_api_options` by the installed classes."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """An engine with everything decided."""

    flow: Flow
    version: Version
    max_input_len: int
    max_seq_len: int
    max_batch_size: int
    max_num_tokens: int
    """Tokens per step."""
    chunked_context: bool | None
    """The setting `enable_chunked_context` to write; None leaves it out."""
    shape: ModelShape | None
    """None if the model's size cannot be worked out."""
    estimate: Estimate | None
    estimated_with: EstimateOptions
    problems: tuple[str, ...]
    """Problems that keep it from working, a sentence each; the estimate has the same."""
    refusals: tuple[str, ...] = ()
    """Problems of the options alone, which --force does not change."""
    notes: tuple[str, ...]
    extra_llm_api_options: dict[str, Any] = {}
    """Further arguments of `LLM`, as the version has them."""


def plan(request: Request, version: Version, gpu: Gpu | None) -> Plan:
    """Decide what was left open; without a GPU the estimate names those that would do.

    Raises:
        EngineLoadError: options that contradict each other, or the model.
    """
    own = request.own
    flow, why = (own.flow, "") if own.flow else default_flow(own, version, partial(_of_family, request, version, True))
    shape, unknown, longest = None, "", request.config.get("max_position_embeddings")
    try:
        shape = shape_of(request.config)
        longest = shape.max_position_embeddings
    except EngineLoadError as error:
        unknown = str(error)
    longest = longest if isinstance(longest, int) and longest > 0 else None
    max_input_len, max_seq_len = lengths(request.max_seq_len, own, longest)
    own = with_flow(own, flow)
    arguments, of_arguments = _arguments(own, version, request)
    stored = stored_as(request.config)
    if stored and request.folder is None:
        # Of a model on the hub config.json alone was fetched, and ModelOpt's own file lies beside it.
        stored = msgspec.structs.replace(stored, inline=False)
    kv_cache_dtype = own.kv_cache_dtype
    if kv_cache_dtype == "auto" and stored and stored.kv_cache in get_args(KvCacheDtype):
        kv_cache_dtype = stored.kv_cache  # type: ignore[assignment]
    max_num_tokens = own.max_num_tokens or DEFAULT_NUM_TOKENS
    quant = own.quant or quantization_of(request.config)
    lacking = chunking.without_paged_context(own, flow, quant, kv_cache_dtype, gpu)
    prompts = chunking.prompts(own, max_input_len, max_num_tokens, lacking)
    wanted = EstimateOptions(
        flow=flow,
        dtype=request.dtype,
        quant=own.quant,
        kv_cache_dtype=kv_cache_dtype,
        tp=own.tensor_parallel_size,
        pp=own.pipeline_parallel_size,
        max_batch_size=request.max_batch_size,
        max_input_len=prompts.max_input_len,
        max_seq_len=max_seq_len,
        max_num_tokens=max_num_tokens,
        max_beam_width=own.max_beam_width,
        kv_cache_free_gpu_mem_fraction=own.settings.kv_cache_free_gpu_mem_fraction or _DEFAULT_FREE_FRACTION,
        gpu=gpu,
        gather_logits=own.gather_logits,
        checkpoint_bytes=request.checkpoint_bytes,
    )
    found = estimate(shape, wanted) if shape else None
    refusals = (
        *_of_options(own, flow, version, stored),
        *_without_effect(own, flow, quant, kv_cache_dtype, stored),
        *of_arguments,
    )
    of_model = tuple(_of_model(request, flow, version, stored))
    problems = (*of_model, *refusals, *prompts.problems, *(found.problems if found else ()))
    remark = None if of_model else families.note(request.config, flow, own.quant, request.architectures)
    notes = (
        *([why] if why else ()),
        *([remark] if remark else ()),
        *(speculation.notes(arguments, version) if not of_arguments else ()),
        *([f"no estimate: {unknown}"] if unknown else ()),
        *prompts.notes,
        *(found.notes if found else ()),
    )
    return Plan(
        flow=flow,
        version=version,
        max_input_len=prompts.max_input_len,
        max_seq_len=max_seq_len,
        max_batch_size=request.max_batch_size,
        max_num_tokens=max_num_tokens,
        chunked_context=prompts.chunked,
        shape=shape,
        estimate=msgspec.structs.replace(found, problems=problems, notes=notes) if found else None,
        estimated_with=wanted,
        problems=problems,
        refusals=refusals,
        notes=notes,
        extra_llm_api_options=arguments,
    )


def described(request: Request, made: Plan) -> str:
    """The text of --dry-run."""
    if made.shape is not None and made.estimate is not None:
        return report(made.shape, made.estimated_with, made.estimate, model=request.model).rstrip("\n")
    head = f"{request.model}: {made.flow} flow, {made.max_seq_len:,} tokens\n"
    return (head + sentences(made.problems, made.notes)).rstrip("\n")


def _of_model(request: Request, flow: Flow, version: Version, stored: StoredAs | None) -> Iterator[str]:
    """Problems of the model's family, or of the checkpoint's quantization, with TensorRT-LLM."""
    if refused := _of_family(request, version, request.trust_remote_code, flow):
        yield refused
        return
    try:
        versions.require_flow(flow, version, str(version))
    except EngineLoadError as error:
        yield str(error)
    if stored and (refused := checkpoint_refusal(stored, flow, (version.major, version.minor))):
        yield refused
    if request.folder is not None and request.config.get("model_type") == "chatglm":
        refused = chatglm.refusal(request.folder, request.config)
        if refused:
            yield refused


def _of_family(request: Request, version: Version, trust: bool, flow: Flow) -> str | None:
    release = (version.major, version.minor)
    return families.refusal(request.config, flow, release, trust_remote_code=trust, installed=request.architectures)


def _of_options(own: TensorRtLlmOptions, flow: Flow, version: Version, stored: StoredAs | None) -> Iterator[str]:
    """Problems that the installed version would raise only in the middle of the build."""
    ranks = own.tensor_parallel_size * own.pipeline_parallel_size
    if own.workers not in (1, ranks):
        yield (
            f"--workers {own.workers} cannot be had: TensorRT-LLM's LLM API builds an engine's {ranks} "
            f"rank{'s' if ranks > 1 else ''} side by side, each on its GPU; leave it out"
        )
    for name, text in own.plugins.items():
        if refused := versions.plugin_refusal(name, text, version):
            yield refused
    dtypes = versions.kv_cache_dtypes(flow, version)
    if own.kv_cache_dtype not in dtypes:
        yield (
            f"--kv-cache-dtype {own.kv_cache_dtype} cannot be had with TensorRT-LLM {version} and --flow {flow}: give "
            f"one of {', '.join(dtypes)}"
        )
    elif stored and (refused := kv_cache_refusal(stored, own.kv_cache_dtype)):
        yield refused
    grammars = own.settings.guided_decoding_backend
    if grammars and not versions.grammar_kinds(flow, grammars, version):
        yield (
            f"--guided-decoding-backend {grammars} is not for TensorRT engines: give xgrammar"
            f"{', or --flow pytorch' if own.backend == 'python' else ', the only one of the C++ backend'}"
        )


def _without_effect(
    own: TensorRtLlmOptions, flow: Flow, quant: str, kv_cache_dtype: KvCacheDtype, stored: StoredAs | None
) -> Iterator[str]:
    """Options that TensorRT-LLM would take and ignore; `quant` and `kv_cache_dtype` may be the checkpoint's own."""
    if flow == "pytorch":
        return
    why = ""
    if stored:
        why = "the checkpoint is quantized already"
    elif not (own.quant and QUANTIZATIONS[own.quant].calibrates) and own.kv_cache_dtype == "auto":
        why = f"only --quant {', '.join(_CALIBRATING)} and a --kv-cache-dtype other than auto are calibrated"
    for option, given in (("--calib-dataset", own.calib_dataset), ("--calib-size", own.calib_size)):
        if why and given:
            yield f"{option} {given} has no effect here: {why}; leave it out"
    if own.plugins.get("use_fp8_context_fmha") == "enable":
        needs = "--use-fp8-context-fmha has no effect here: TensorRT-LLM turns it off"
        if own.plugins.get("context_fmha") == "disable":
            yield f"{needs} together with context_fmha; leave one of the two out"
        elif quant not in _QUANTS_WITH_FP8_CONTEXT:
            yield f"{needs} unless --quant is {', '.join(_QUANTS_WITH_FP8_CONTEXT)}; leave it out, or give one of these"
        elif kv_cache_dtype != "fp8" and own.plugins.get("use_paged_context_fmha") != "disable":
            yield (
                f"{needs} unless the KV cache is in fp8; give --kv-cache-dtype fp8 (or --use-paged-context-fmha "
                "disable) too, or leave it out"
            )


def _arguments(own: TensorRtLlmOptions, version: Version, request: Request) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Further arguments of `LLM` in the version's terms, and their refusals."""
    if not own.extra_llm_api_options:
        return {}, ()
    try:
        arguments = llm_args.read(own.extra_llm_api_options, version)
    except EngineLoadError as error:
        return {}, (str(error),)
    refused = speculation.refusals(
        arguments,
        version,
        pipeline_parallel_size=own.pipeline_parallel_size,
        max_beam_width=own.max_beam_width,
        adapters=bool(own.lora),
        grammars=own.settings.guided_decoding_backend,
    )
    return arguments, (*refused, *([request.arguments_refusal] if request.arguments_refusal else ()))


def lengths(max_seq_len: int | None, own: TensorRtLlmOptions, longest: int | None) -> tuple[int, int]:
    """Tokens of a prompt, and of prompt and output together; `longest` is what the model was made for.

    Raises:
        EngineLoadError: they contradict each other, or the model.
    """
    most_input, most_output = own.max_input_len, own.max_output_len
    if max_seq_len is not None and most_output is not None:
        raise EngineLoadError("--max-output-len and --max-seq-len say the same: give one of the two")
    if most_output is not None and most_input is not None:
        total = most_input + most_output
    else:
        total = max_seq_len if max_seq_len is not None else longest or DEFAULT_MODEL_LEN
    if total < 1 or (longest is not None and total > longest):
        raise EngineLoadError(f"--max-seq-len {total} is outside what the model was made for (1 to {longest})")
    if most_input is None:
        # A request has at least one token of output.
        most_input = total - (most_output or 1) if total > 1 else 1
    if most_input < 1:
        raise EngineLoadError(f"--max-output-len {most_output} leaves no room for a prompt in {total} tokens")
    if most_input > total:
        raise EngineLoadError(f"--max-input-len {most_input} is more than the {total} tokens of --max-seq-len")
    return most_input, total


def gpu_for(name: str | None, installed: Sequence[InstalledGpu]) -> Gpu:
    """The GPU to estimate for: the named one, else the first that is installed, else `DEFAULT_GPU`.

    Raises:
        EngineLoadError: none of that name is known.
    """
    if name is not None:
        return find_gpu(name)
    return as_gpu(installed[0]) if installed else find_gpu(DEFAULT_GPU)


def as_gpu(installed: InstalledGpu) -> Gpu:
    """GPU for an estimate. Both have nvidia-smi's memory.total, from which `Gpu` takes what no program gets."""
    major, _, minor = installed.compute_capability.partition(".")
    return Gpu(installed.name, installed.memory_bytes // _MIB, (int(major), int(minor or 0)))
