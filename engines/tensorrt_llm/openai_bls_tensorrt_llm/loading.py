"""Loading of an engine for TensorRT-LLM: what does not fit together is refused with a sentence, before it can crash."""

from __future__ import annotations

import importlib.util
import logging
import os
from pathlib import Path
from typing import Any, cast, get_args

import msgspec

from openai_bls.core.checkpoint import read_checkpoint
from openai_bls.core.engine import Engine, StepListener
from openai_bls.core.manifest import (
    BUILD_HINT,
    ENGINE_FOLDER,
    EngineLoadError,
    KvCacheSettings,
    LoraSettings,
    Manifest,
    check_files,
    checkpoint_dir,
    first_line,
    short,
)
from openai_bls.core.settings import EngineSettings
from openai_bls.engines.capabilities import MAX_LOGPROBS
from openai_bls.engines.engine_info import engine_info
from openai_bls.engines.kv_events.publisher import KvEventPublisher, config_of
from openai_bls_tensorrt_llm.engine import TrtLlmEngine
from openai_bls_tensorrt_llm.installed import images, versions
from openai_bls_tensorrt_llm.installed.api import Api
from openai_bls_tensorrt_llm.installed.interface import KvCacheDtype, LlmOptions, LoraAdapter
from openai_bls_tensorrt_llm.installed.module import IMAGES
from openai_bls_tensorrt_llm.kv_events import EVENT_BUFFER
from openai_bls_tensorrt_llm.legacy.ranks.started import ranks_are_started
from openai_bls_tensorrt_llm.loaded_adapters import LoadedAdapters
from openai_bls_tensorrt_llm.record import TensorRtLlmRecord
from openai_bls_tensorrt_llm.sampling import grammar_end

logger = logging.getLogger(__name__)

TOKENIZER_FOLDER = "tokenizer"
"""Beside the manifest, for grammars."""

# What TensorRT-LLM, PyTorch and CUDA say when memory does not suffice; in lower case.
_OUT_OF_MEMORY = (
    "out of memory",
    "outofmemory",
    "cudaerrormemoryallocation",
    "not enough memory",
    "insufficient memory",
)


def load(
    version_dir: Path,
    manifest: Manifest,
    settings: EngineSettings,
    on_step: StepListener,
    *,
    api: Api | None = None,
) -> Engine:
    """The engine of `manifest`, loaded and ready. Takes minutes.

    Args:
        version_dir: the folder that the manifest lies in.
        manifest: manifest of the kind `tensorrt_llm`.
        settings: the Triton model's.
        on_step: the listener.
        api: TensorRT-LLM; by default the installed one.

    Raises:
        EngineLoadError: one sentence that says what does not fit and what to do.
    """
    record = TensorRtLlmRecord.of(manifest)
    if record.backend == "cpp":
        raise EngineLoadError(
            "config.pbtxt has Triton's Python backend run an engine that engine.json says was built for the C++ "
            "backend: run the build again, with --backend python or --backend cpp"
        )
    checkpoint = checkpoint_dir(version_dir, manifest, hashes=bool(settings.verify_weights))
    facts = read_checkpoint(checkpoint)
    options = llm_options(version_dir, manifest, settings)
    api = api or _installed(record)
    check_version(record, api)
    if manifest.max_images and (problem := images.problem(facts.architecture, record.flow, api.version)):
        raise EngineLoadError(f"{problem}: {BUILD_HINT}")
    check_gpus(record, api)
    info = engine_info(
        manifest,
        facts,
        version=api.version_text,
        # The engine itself matches stop words, over token ids.
        supported={*api.supported(options), "stop_words"},
        max_logprobs=max_logprobs(api, options, facts.vocab_size),
        grammar_backend=options.guided_decoding_backend,
        grammar_kinds=api.grammar_kinds(options),
        grammar_dialect="guided_decoding",
        max_num_tokens=record.max_num_tokens,
    )
    kv_events = config_of(settings.kv_events_endpoint, settings.kv_events_replay_endpoint, settings.kv_events_topic)
    if kv_events is not None:
        if manifest.max_images:
            raise EngineLoadError(
                "kv_events_endpoint is not for a model that takes images, which its events do not tell apart: build "
                "with --max-images 0, or leave it out"
            )
        _require_plain_blocks(options)
        options = msgspec.structs.replace(options, kv_event_buffer=EVENT_BUFFER)
    llm = _open(api, options)
    try:
        publisher = None if kv_events is None else KvEventPublisher(kv_events)
    except BaseException:
        llm.shutdown()
        raise
    return TrtLlmEngine(
        api,
        llm,
        manifest,
        LoadedAdapters(options.lora, info, manifest.lora, checkpoint, api.version),
        on_step,
        max_tokens_in_kv_cache=options.max_tokens_in_paged_kv_cache,
        grammar_end_id=None if options.tokenizer is None else grammar_end(options.tokenizer),
        chunked_context=bool(options.enable_chunked_context),
        kv_events=publisher,
    )


def _require_plain_blocks(options: LlmOptions) -> None:
    """Raise `EngineLoadError` if the engine cannot tell of its prefix cache by full blocks of the usual size."""
    cache = options.extra_llm_api_options.get("kv_cache_config", {})
    for name in ("tokens_per_block", "event_buffer_max_size"):
        if name in cache:
            raise EngineLoadError(
                f"kv_events_endpoint goes with TensorRT-LLM's own {name}, and --extra-llm-api-options sets it: leave "
                "one of them out"
            )
    if not options.enable_kv_cache_reuse:
        raise EngineLoadError("kv_events_endpoint needs enable_kv_cache_reuse, which config.pbtxt turns off")


def llm_options(version_dir: Path, manifest: Manifest, settings: EngineSettings) -> LlmOptions:
    """Load options of the engine of `manifest`: the settings over what the builder recorded.

    Raises:
        EngineLoadError: a file is missing or has changed, or a setting cannot be honoured.
    """
    record = TensorRtLlmRecord.of(manifest)
    cache = manifest.kv_cache
    fraction = settings.kv_cache_free_gpu_mem_fraction
    if fraction is None and cache.free_memory_fraction != KvCacheSettings().free_memory_fraction:
        fraction = cache.free_memory_fraction
    tokenizer = version_dir / TOKENIZER_FOLDER
    if settings.guided_decoding_backend and not tokenizer.is_dir():
        raise EngineLoadError(
            f"guided_decoding_backend needs the tokenizer beside the engine, and {short(tokenizer)} is missing: "
            f"{BUILD_HINT}"
        )
    if record.kv_cache_dtype not in get_args(KvCacheDtype):
        raise EngineLoadError(
            f"{short(version_dir)}/engine.json has the kv_cache_dtype {record.kv_cache_dtype!r}, which is none of "
            f"{', '.join(get_args(KvCacheDtype))}: {BUILD_HINT}"
        )
    built = record.flow == "tensorrt"
    options = LlmOptions(
        model=_engine_dir(version_dir, manifest, settings) if built else version_dir / manifest.checkpoint,
        flow=record.flow,
        max_batch_size=manifest.max_batch_size,
        max_model_len=manifest.max_model_len,
        max_num_tokens=record.max_num_tokens,
        max_beam_width=record.max_beam_width,
        dtype=manifest.dtype,
        tensor_parallel_size=record.tensor_parallel_size,
        pipeline_parallel_size=record.pipeline_parallel_size,
        tokenizer=tokenizer if tokenizer.is_dir() else None,
        trust_remote_code=manifest.trust_remote_code,
        kv_cache_dtype=cast("KvCacheDtype", record.kv_cache_dtype),
        kv_cache_free_gpu_mem_fraction=fraction,
        max_tokens_in_paged_kv_cache=settings.max_tokens_in_paged_kv_cache or cache.max_tokens_in_kv_cache,
        max_attention_window_size=settings.attention_windows,
        guided_decoding_backend=settings.guided_decoding_backend,
        gather_generation_logits=built and record.gather_logits,
        lora=_adapters(version_dir, manifest.lora),
        max_loras=manifest.lora.max_loras,
        max_lora_rank=manifest.lora.max_lora_rank,
        lora_target_modules=manifest.lora.target_modules,
        extra_llm_api_options=record.extra_llm_api_options,
    )
    # None leaves TensorRT-LLM's own default, which the options' are.
    names = (
        "kv_cache_host_memory_bytes",
        "enable_kv_cache_reuse",
        "enable_chunked_context",
        "batch_scheduler_policy",
    )
    given: dict[str, Any] = {name: value for name in names if (value := getattr(settings, name)) is not None}
    return msgspec.structs.replace(options, **given)


def check_version(record: TensorRtLlmRecord, api: Api) -> None:
    """Raise `EngineLoadError` if the installed TensorRT-LLM cannot run what another one built."""
    if record.flow == "tensorrt" and record.version != api.version_text:
        tag = IMAGES.get(record.version)
        image = f"the image tritonserver:{tag}-trtllm-python-py3, which has that" if tag else "that one"
        raise EngineLoadError(
            f"the engine was built by TensorRT-LLM {record.version}, and this machine has {api.version_text}: a "
            f"TensorRT engine runs with its own version only, so build it again here, or use {image}"
        )


def check_gpus(record: TensorRtLlmRecord, api: Api) -> None:
    """Raise `EngineLoadError` if the GPUs are too few, or not of the kind that the engine was built for."""
    gpus = api.gpus()
    wanted = record.world_size
    if ranks_are_started(os.environ):
        # On other machines too, each of which has its own.
        wanted = min(wanted, max(1, len(gpus)))
    if len(gpus) < wanted:
        raise EngineLoadError(
            f"the engine needs {wanted} GPU{'s' if wanted > 1 else ''} (--tp-size {record.tensor_parallel_size}, "
            f"--pp-size {record.pipeline_parallel_size}), and this process sees {len(gpus)}: make more visible "
            "(CUDA_VISIBLE_DEVICES, docker's --gpus), or build with a smaller --tp-size"
        )
    if record.flow != "tensorrt" or not record.compute_capability:
        return
    for number, gpu in enumerate(gpus[:wanted]):
        if gpu.compute_capability != record.compute_capability:
            raise EngineLoadError(
                f"the engine was built for GPUs of compute capability {record.compute_capability} "
                f"({record.gpu or 'name unknown'}), and GPU {number} is {gpu.name} with {gpu.compute_capability}: "
                "build it again on this machine"
            )


def max_logprobs(api: Api, options: LlmOptions, vocab_size: int) -> int:
    """Most likeliest tokens per position that the installed version returns, besides the token itself."""
    if "logprobs" not in api.supported(options):
        return 0
    most = versions.max_logprobs(options.flow, api.version)
    # One is the sampled token's own alone.
    return min(most, MAX_LOGPROBS, vocab_size) if most > 1 else 0


def _installed(record: TensorRtLlmRecord) -> Api:
    if importlib.util.find_spec("tensorrt_llm") is None:
        tag = IMAGES.get(record.version)
        image = f"tritonserver:{tag}-trtllm-python-py3" if tag else "a tritonserver image with trtllm-python-py3"
        raise EngineLoadError(
            f"the engine needs TensorRT-LLM {record.version}, which this Python does not have: use {image}, or build "
            "with `openai-bls build --engine transformers`"
        )
    # Imports TensorRT-LLM, with PyTorch and MPI behind it: half a minute.
    from openai_bls_tensorrt_llm.installed import api

    try:
        return api.installed()
    except EngineLoadError:
        raise
    except Exception as error:
        logger.exception("TensorRT-LLM cannot be imported")
        raise EngineLoadError(f"TensorRT-LLM cannot be imported: {first_line(error)}") from None


def _engine_dir(version_dir: Path, manifest: Manifest, settings: EngineSettings) -> Path:
    """The folder with the engine, after a look at whether its files are there and unchanged."""
    folder = version_dir / ENGINE_FOLDER
    if not manifest.engine_files:
        raise EngineLoadError(f"{short(version_dir)}/engine.json names no engine files: {BUILD_HINT}")
    check_files(folder, manifest.engine_files, hashes=bool(settings.verify_weights))
    return folder


def _adapters(version_dir: Path, lora: LoraSettings) -> tuple[LoraAdapter, ...]:
    for name, folder in lora.adapters.items():
        if not (version_dir / folder).is_dir():
            raise EngineLoadError(f"the adapter {name} is missing at {short(version_dir / folder)}: {BUILD_HINT}")
    return tuple(
        LoraAdapter(name, version_dir / folder, number)
        for number, (name, folder) in enumerate(lora.adapters.items(), 1)
    )


def _open(api: Api, options: LlmOptions) -> Any:
    try:
        return api.open(options)
    except EngineLoadError:
        raise
    except Exception as error:
        logger.exception("TensorRT-LLM does not load the model")
        said = f"{type(error).__name__} {error}".lower()
        if isinstance(error, MemoryError) or any(sign in said for sign in _OUT_OF_MEMORY):
            raise EngineLoadError(_memory_advice(options)) from None
        raise EngineLoadError(f"TensorRT-LLM does not load the model: {first_line(error)}") from None


def _memory_advice(options: LlmOptions) -> str:
    fraction = options.kv_cache_free_gpu_mem_fraction
    if options.max_tokens_in_paged_kv_cache:
        now, knob = f"{options.max_tokens_in_paged_kv_cache} tokens", "max_tokens_in_paged_kv_cache"
    else:
        now, knob = f"{fraction or 'the default share'}", "kv_cache_free_gpu_mem_fraction"
    return (
        f"the GPU's memory does not suffice: lower {knob} (now {now}) in config.pbtxt, end what else uses the GPU, or "
        f"build with a smaller --max-batch-size (now {options.max_batch_size}) or --max-num-tokens, with a larger "
        "--tp-size, or with --quant"
    )
