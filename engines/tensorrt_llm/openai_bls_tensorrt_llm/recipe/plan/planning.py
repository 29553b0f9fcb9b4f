"""Plan of an engine: flow, lengths, and whether model, machine and options go together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import msgspec

from openai_bls.builder.checkpoint.quantized import StoredAs, quantization_of, stored_as
from openai_bls.builder.options.build import BuildOptions
from openai_bls.builder.placing.adapters import lora_settings, read_adapters
from openai_bls.core.checkpoint import context_length
from openai_bls.core.engine import LoraError
from openai_bls.core.machine.nvidia_smi import InstalledGpu
from openai_bls.core.manifest import EngineSetupError, LoraSettings
from openai_bls.core.settings import EngineSettings
from openai_bls_tensorrt_llm.installed import llm_args, speculation, versions
from openai_bls_tensorrt_llm.installed.interface import Flow, KvCacheDtype, Version
from openai_bls_tensorrt_llm.lora import target_modules
from openai_bls_tensorrt_llm.recipe import memory
from openai_bls_tensorrt_llm.recipe.gpus import Gpu, find_gpu, gpu_of_memory
from openai_bls_tensorrt_llm.recipe.memory import Estimate, PlannedEngine
from openai_bls_tensorrt_llm.recipe.model import chatglm, families
from openai_bls_tensorrt_llm.recipe.model.shapes import ModelShape, shape_of
from openai_bls_tensorrt_llm.recipe.options import TensorRtLlmOptions, with_flow
from openai_bls_tensorrt_llm.recipe.plan import checks, chunking, features, lengths, windows
from openai_bls_tensorrt_llm.recipe.plan.calibration import Calibration
from openai_bls_tensorrt_llm.recipe.plan.findings import Findings
from openai_bls_tensorrt_llm.recipe.plan.flows import default_flow
from openai_bls_tensorrt_llm.recipe.plan.images import images_of
from openai_bls_tensorrt_llm.recipe.plan.quantized import checkpoint_refusal, kv_cache_refusal

DEFAULT_NUM_TOKENS = 8192
"""The default of `BuildConfig.max_num_tokens`, and of the PyTorch flow's since 1.2."""
DEFAULT_GPU = "H100"
"""Estimated for where there is none."""
NEWEST = Version(1, 2, 1)
"""Version that is assumed where none is installed: that of the newest Triton image."""
_MIB = 1 << 20
_DEFAULT_FREE_FRACTION = 0.9


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Engine to plan: the options, and what is known of the checkpoint and of the installed TensorRT-LLM."""

    options: BuildOptions
    config: dict[str, Any]
    """Contents of the checkpoint's config.json."""
    folder: Path | None = None
    """Folder of the checkpoint, where it is on this machine."""
    architectures: Mapping[Flow, frozenset[str]] | None = None
    """Architectures that the installed TensorRT-LLM has in each flow; None if it was not asked."""
    arguments_refusal: str = ""
    """Refusal of the option `extra_llm_api_options` by the installed classes."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """An engine with everything decided."""

    version: Version
    engine: PlannedEngine
    calib_size: int
    """Texts to calibrate on."""
    settings: EngineSettings
    """Serving settings to write: what was asked for, and what follows from the model."""
    shape: ModelShape | None
    """Shape of the model; None if its size cannot be worked out."""
    estimate: Estimate | None
    problems: tuple[str, ...]
    """Problems that keep it from working, a sentence each."""
    refusals: tuple[str, ...] = ()
    """Problems of the options alone, which --force does not change."""
    notes: tuple[str, ...]
    lora: LoraSettings
    extra_llm_api_options: dict[str, Any] = {}
    """Further arguments of `LLM`, as the version has them."""
    max_images: int = 0
    """Images that a prompt may hold; 0 if the engine takes text alone."""


def plan(request: Request, version: Version, gpu: Gpu | None) -> Plan:
    """Decide what was left open; without a GPU the KV cache is not estimated.

    Raises:
        BuildError: options that contradict each other, or the model.
    """
    options = request.options
    own = options.own_as(TensorRtLlmOptions)
    flow, why = (own.flow, "") if own.flow else default_flow(own, version, partial(_of_family, request, version, True))
    own = with_flow(own, flow)
    arguments, of_arguments = _arguments(own, version, request)
    lora, of_adapters = _adapters(request, version)
    shape, unknown, positions = None, "", context_length(request.config)
    try:
        shape = shape_of(request.config)
        positions = shape.max_position_embeddings
    except EngineSetupError as error:
        unknown = str(error)
    family = families.family_of(request.config)
    end = windows.end(request.config, family, flow)
    max_input_len, max_seq_len = lengths.lengths(options.max_model_len, own, positions, end)
    of_lengths = lengths.findings(own, flow, max_seq_len, positions, end)
    drafts = speculation.speculation(arguments, version) is not None
    images = images_of(options, request.config, request.folder, flow, version, drafts=drafts)
    settings, of_features = features.with_features(
        own.settings, request.config, flow, version, images=bool(images.most)
    )
    settings, of_windows = windows.with_windows(settings, request.config, family, flow, max_seq_len)
    own = msgspec.structs.replace(own, settings=settings)
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
    engine = PlannedEngine(
        flow=flow,
        dtype=options.dtype,
        quant=own.quant,
        kv_cache_dtype=kv_cache_dtype,
        tp=own.tensor_parallel_size,
        pp=own.pipeline_parallel_size,
        max_batch_size=options.batch_size,
        max_input_len=prompts.max_input_len,
        max_seq_len=max_seq_len,
        max_num_tokens=max_num_tokens,
        max_beam_width=own.max_beam_width,
        kv_cache_free_gpu_mem_fraction=settings.kv_cache_free_gpu_mem_fraction or _DEFAULT_FREE_FRACTION,
        max_tokens_in_kv_cache=settings.max_tokens_in_paged_kv_cache,
        windows=settings.attention_windows,
        gpu=gpu,
    )
    found = memory.estimate(shape, engine) if shape else None
    of_engine = checks.check(shape, engine, found) if shape and found else Findings()
    calibration = Calibration(
        family, own.quant, own.kv_cache_dtype, own.calib_dataset, own.calib_size, quantized_already=stored is not None
    )
    of_calibration = Findings()
    if flow == "tensorrt":
        of_calibration = calibration.findings(request.config, engine.ranks, trust_remote_code=options.trust_remote_code)
    fp8_context = chunking.fp8_context_refusal(own, quant, kv_cache_dtype)
    refusals = (
        *_of_options(own, flow, version, stored),
        *([fp8_context] if fp8_context else ()),
        *of_calibration.refusals,
        *of_arguments,
        *of_adapters,
        *images.refusals,
    )
    of_model = tuple(_of_model(request, flow, version, stored))
    problems = (
        *of_model,
        *refusals,
        *of_calibration.problems,
        *of_lengths.problems,
        *of_features.problems,
        *of_windows.problems,
        *prompts.problems,
        *of_engine.problems,
    )
    remark = None if of_model else families.note(request.config, flow, own.quant, request.architectures)
    notes = (
        *([why] if why else ()),
        *([remark] if remark else ()),
        *(speculation.notes(arguments, version) if not of_arguments else ()),
        *llm_args.notes(arguments, version),
        *([f"no estimate: {unknown}"] if unknown else ()),
        *images.notes,
        *of_lengths.notes,
        *of_features.notes,
        *of_windows.notes,
        *prompts.notes,
        *of_calibration.notes,
        *of_engine.notes,
    )
    return Plan(
        version=version,
        engine=engine,
        calib_size=calibration.texts,
        settings=msgspec.structs.replace(settings, enable_chunked_context=prompts.chunked),
        shape=shape,
        estimate=found,
        problems=problems,
        refusals=refusals,
        notes=notes,
        lora=lora,
        extra_llm_api_options=arguments,
        max_images=images.most,
    )


def described(request: Request, made: Plan) -> str:
    """The text of --dry-run."""
    engine, found = made.engine, made.estimate
    of = f"{found.parameters / 1e6:,.2f} million parameters, {found.dtype}, " if found else ""
    quant = f"{found.quant} weights, " if found and found.quant else ""
    gpu = f" of {engine.gpu.name}, {memory.gib(engine.gpu.memory_bytes)} each" if engine.gpu else ""
    lines = [
        f"{request.options.model}: {of}{quant}{engine.flow} flow on {engine.ranks} GPU{'s' * (engine.ranks > 1)}{gpu}",
        f"{engine.max_batch_size:,} sequences of {engine.max_seq_len:,} tokens, prompts of {engine.max_input_len:,}, "
        f"{engine.max_num_tokens:,} tokens per step",
    ]
    if found:
        lines += ["", "Memory of each GPU", *memory.lines(engine, found)]
    return "\n".join(lines) + sentences(made.problems, made.notes)


def sentences(problems: Sequence[str], notes: Sequence[str]) -> str:
    """Both under their headings, with an empty line before each heading; empty if there are none."""
    found = (("Problems", problems), ("Notes", notes))
    return "".join(f"\n\n{title}\n" + "\n".join(f"  - {one}" for one in told) for title, told in found if told)


def _of_model(request: Request, flow: Flow, version: Version, stored: StoredAs | None) -> Iterator[str]:
    """Problems of the model's family, or of the checkpoint's quantization, with TensorRT-LLM."""
    if refused := _of_family(request, version, request.options.trust_remote_code, flow):
        yield refused
        return
    try:
        versions.require_flow(flow, version, str(version))
    except EngineSetupError as error:
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


def _arguments(own: TensorRtLlmOptions, version: Version, request: Request) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Further arguments of `LLM` in the version's terms, and their refusals."""
    if not own.extra_llm_api_options:
        return {}, ()
    try:
        arguments = llm_args.read(own.extra_llm_api_options, version)
    except EngineSetupError as error:
        return {}, (str(error),)
    refused = speculation.refusals(
        arguments,
        version,
        pipeline_parallel_size=own.pipeline_parallel_size,
        max_beam_width=own.max_beam_width,
        adapters=bool(request.options.lora.adapters or request.options.lora.max_loras),
        grammars=own.settings.guided_decoding_backend,
    )
    return arguments, (*refused, *([request.arguments_refusal] if request.arguments_refusal else ()))


def _adapters(request: Request, version: Version) -> tuple[LoraSettings, tuple[str, ...]]:
    """What the manifest says of adapters, and the refusal of those that TensorRT-LLM would not apply in full."""
    options = request.options.lora
    try:
        adapters = read_adapters(options)
        room = options.max_loras is not None and options.max_loras > len(adapters)
        if request.options.own_as(TensorRtLlmOptions).backend == "cpp" and room:
            return LoraSettings(), (
                "--max-loras is for --backend python: the C++ backend gets adapters from its clients",
            )
        return lora_settings(options, adapters, target_modules(adapters, request.config, version, room=room)), ()
    except EngineSetupError as error:
        return LoraSettings(), (str(error),)
    except LoraError as error:
        return LoraSettings(), (f"--lora-dir: {error}",)


def gpu_for(name: str | None, memory: str | None, installed: Sequence[InstalledGpu]) -> Gpu:
    """The GPU to estimate for: the named one or one of this memory, else the first installed, else `DEFAULT_GPU`.

    Raises:
        BuildError: none of that name is known, or `memory` is no size.
    """
    if memory is not None:
        return gpu_of_memory(memory, name)
    if name is not None:
        return find_gpu(name)
    return as_gpu(installed[0]) if installed else find_gpu(DEFAULT_GPU)


def as_gpu(installed: InstalledGpu) -> Gpu:
    """GPU for an estimate. Both have nvidia-smi's memory.total, from which `Gpu` takes what no program gets."""
    major, _, minor = installed.compute_capability.partition(".")
    return Gpu(installed.name, installed.memory_bytes // _MIB, (int(major), int(minor or 0)))
