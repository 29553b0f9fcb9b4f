"""Loader of the vLLM engine: a checkpoint in the engine's folder, opened by the installed vLLM."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec

from openai_bls.core.checkpoint import CheckpointFacts, read_checkpoint, read_json, text_config
from openai_bls.core.engine import Engine, LoraError, StepListener
from openai_bls.core.manifest import (
    BUILD_HINT,
    EngineLoadError,
    Manifest,
    checkpoint_dir,
    short,
)
from openai_bls.core.settings import EngineSettings
from openai_bls.engines import answers
from openai_bls.engines.capabilities import MAX_LOGPROBS
from openai_bls.engines.engine_info import engine_info
from openai_bls.output.structured.libraries.guidance import KINDS
from openai_bls_vllm import lora, pooling
from openai_bls_vllm.arguments import engine_args
from openai_bls_vllm.clients import core_client
from openai_bls_vllm.clients.async_llm import AsyncLlmClient
from openai_bls_vllm.engine import Opened, VllmEngine
from openai_bls_vllm.grammars import structured_outputs
from openai_bls_vllm.grammars.grammars import Grammars
from openai_bls_vllm.interface import Client, LoraAdapter
from openai_bls_vllm.module import Vllm
from openai_bls_vllm.multi_node import headless
from openai_bls_vllm.multi_node.nodes import Nodes
from openai_bls_vllm.multi_node.watch import Gathering, gather
from openai_bls_vllm.options import ClientChoice, VllmOptions
from openai_bls_vllm.pooling import Task
from openai_bls_vllm.record import VllmRecord
from openai_bls_vllm.requests.sampling import FIELDS, GRAMMAR_EXCLUDES, SPECULATIVE_REFUSED, Runner
from openai_bls_vllm.scheduling.choice import SHORT_PASSES, takes_short_passes
from openai_bls_vllm.startup import arguments
from openai_bls_vllm.startup.kv_cache import GIB, cpu_kv_cache_bytes
from openai_bls_vllm.startup.start_log import StartLog, sentence, short_line
from openai_bls_vllm.versions import KV_CACHE_BYTES_ON_CPU, NEWEST

logger = logging.getLogger(__name__)

TOKENIZER_FOLDER = "tokenizer"
"""Beside the manifest, for grammars; else the checkpoint's own tokenizer."""

_CPU_SPACE = "VLLM_CPU_KVCACHE_SPACE"
_HELD = "free memory on device"
"""What vLLM says, in lower case, when less is free than its share of all memory."""
# What vLLM, PyTorch and CUDA say when memory does not suffice; in lower case.
_OUT_OF_MEMORY = (
    "out of memory",
    "outofmemory",
    "cannot allocate memory",
    "can't allocate memory",
    "no available memory for the cache",
    _HELD,
    "larger than the available kv cache memory",
    "larger than the maximum number of tokens that can be stored in kv cache",
    "not enough memory",
)


def load(
    version_dir: Path,
    manifest: Manifest,
    settings: EngineSettings,
    on_step: StepListener,
    options: VllmOptions | None = None,
) -> Engine:
    """The engine that lies in `version_dir`, loaded and ready. Takes minutes; from any thread.

    Raises:
        EngineLoadError: one sentence that says what is missing and what to do.
    """
    start = _prepare(version_dir, manifest, settings, options)
    adapters = _adapters(version_dir, manifest, start.checkpoint)
    vllm, values = start.vllm, start.values
    gathering = gather(start.nodes)

    def open_client() -> Opened:
        return _open(start, manifest, gathering)

    listener = answers.Switch(on_step)
    with StartLog(vllm.name) as log:
        try:
            engine = VllmEngine(open_client, listener, lora=adapters, checkpoint=start.checkpoint)
        except EngineLoadError:
            raise
        except LoraError as error:
            raise EngineLoadError(f"{error}: {BUILD_HINT}") from None
        except Exception as error:
            logger.exception("vLLM does not load the model")
            raise EngineLoadError(failure(error, log.cause(), values, on_cpu=vllm.on_cpu)) from None
    recorded = VllmRecord.of(manifest).answers
    if recorded is not None:
        try:
            answers.require_same(engine, listener, recorded, device=vllm.device())
        except BaseException:
            engine.close()
            raise
    return engine


def run_headless(
    version_dir: Path, manifest: Manifest, settings: EngineSettings, options: VllmOptions | None = None
) -> NoReturn:
    """Run the workers of a machine that is not the first, and end this process with the first machine's engine.

    Raises:
        EngineLoadError: one sentence that says what is missing and what to do.
    """
    start = _prepare(version_dir, manifest, settings, options)
    headless.run(start.nodes, lambda: headless.start_workers(_config(start, headless=True)))


class _Start(NamedTuple):
    """What vLLM is started with."""

    vllm: Vllm
    values: dict[str, Any]
    """Arguments of `AsyncEngineArgs`."""
    checkpoint: Path
    facts: CheckpointFacts
    grammars: Grammars | None
    """Grammars of the model; None if structured output is refused."""
    nodes: Nodes
    client: ClientChoice
    task: Task


def _prepare(version_dir: Path, manifest: Manifest, settings: EngineSettings, options: VllmOptions | None) -> _Start:
    options = options or VllmOptions()
    nodes = Nodes.of(options, VllmRecord.of(manifest))
    checkpoint = checkpoint_dir(version_dir, manifest, hashes=bool(settings.verify_weights))
    facts = read_checkpoint(checkpoint)
    vllm = Vllm.installed()
    tokenizer = tokenizer_dir(version_dir, checkpoint)
    values = arguments.engine_args(
        checkpoint,
        manifest,
        settings,
        fields=vllm.engine_args_fields(),
        version=vllm.version_text,
        on_cpu=vllm.on_cpu,
        tokenizer=tokenizer,
    )
    task = VllmRecord.of(manifest).task
    grammars = _grammars(tokenizer, facts) if task == "generate" else None
    if grammars is not None:
        config = vllm.name("vllm.config.StructuredOutputsConfig")
        values["structured_outputs_config"] = config(**structured_outputs.CONFIG)
    config_json = read_json(checkpoint / "config.json")
    if values.get("quantization") == "fp8" and "quantization_config" not in config_json | text_config(config_json):
        values["quantization"] = vllm.online_fp8()
    if vllm.on_cpu:
        _limit_cpu_kv_cache(vllm, manifest, facts, values)
    return _Start(vllm, values | nodes.engine_args(), checkpoint, facts, grammars, nodes, options.vllm_client, task)


def tokenizer_dir(version_dir: Path, checkpoint: Path) -> Path | None:
    """Folder of the tokenizer that vLLM's grammars read; None if there is none."""
    for folder in (version_dir / TOKENIZER_FOLDER, checkpoint):
        if (folder / "tokenizer.json").is_file():
            return folder
    return None


def _grammars(tokenizer: Path | None, facts: CheckpointFacts) -> Grammars | None:
    """Grammars that vLLM holds outputs to; None, with a line in the log, if there are none."""
    if tokenizer is None:
        logger.warning("structured output is refused: there is no tokenizer.json beside the engine")
        return None
    return Grammars.of(tokenizer, facts.vocab_size, facts.eos_token_ids)


def _open(start: _Start, manifest: Manifest, gathering: Gathering | None) -> Opened:
    """Load the model. On the event loop's thread."""
    vllm, grammars = start.vllm, start.grammars
    config = _config(start)
    client = _client(vllm, config, start.client, images=bool(manifest.max_images))
    logger.info("loaded %s with vLLM %s (%s)", start.values["model"], vllm.version_text, client.name)
    names = set(FIELDS)
    if config.speculative_config is not None:
        names -= SPECULATIVE_REFUSED
    if config.kv_transfer_config is not None:
        names.add("kv_transfer_params")
    if config.scheduler_config.policy == "priority":
        names.add("priority")
    info = engine_info(
        manifest,
        start.facts,
        version=vllm.version_text,
        supported=names,
        max_logprobs=min(MAX_LOGPROBS, start.facts.vocab_size) if "logprobs" in names else 0,
        grammar_backend="" if grammars is None else "llguidance",
        grammar_kinds=KINDS,
        grammar_dialect="guidance",
        grammar_excludes=GRAMMAR_EXCLUDES,
        marker_token_ids=None if grammars is None else grammars.marker_token_ids,
        max_num_tokens=config.scheduler_config.max_num_batched_tokens,
    )
    info = msgspec.structs.replace(info, **pooling.facts(start.task, config.model_config))
    # vLLM writes both here once it has measured what memory there is.
    cache = config.cache_config
    blocks, block_size = (getattr(cache, name, None) or 0 for name in ("num_gpu_blocks", "block_size"))
    return Opened(client, info, _runner(config), grammars, blocks, block_size, gathering, start.task)


def _config(start: _Start, *, headless: bool = False) -> Any:
    """`VllmConfig`, the same on all machines."""
    vllm = start.vllm
    # Of `vllm serve`: tokens per step for the GPU that is there.
    context = vllm.name("vllm.usage.usage_lib.UsageContext").OPENAI_API_SERVER
    config = vllm.name("vllm.AsyncEngineArgs")(**start.values).create_engine_config(context, headless=headless)
    if vllm.on_cpu and not _runner(config).second and start.task == "generate":
        _forbid_chunks(config, start.values)
    if start.task == "generate" and takes_short_passes(vllm, config):
        config.scheduler_config.scheduler_cls = SHORT_PASSES
    return config


def _runner(config: Any) -> Runner:
    return Runner(second=bool(getattr(config, "use_v2_model_runner", False)))


def _forbid_chunks(config: Any, values: dict[str, Any]) -> None:
    """Compute each prompt in one step: the first model runner winds a seeded generator back after each other chunk,
    which PyTorch's generators on a CPU cannot, and vLLM dies of it.

    Raises:
        EngineLoadError: chunks were asked for.
    """
    scheduler, longest = config.scheduler_config, config.model_config.max_model_len
    if values.get("enable_chunked_prefill"):
        raise EngineLoadError("enable_chunked_context is not for vLLM on a CPU, whose seeds fail with it: leave it out")
    for name in ("max_num_batched_tokens", "max_num_scheduled_tokens", "long_prefill_token_threshold"):
        if 0 < (values.get(name) or 0) < longest:
            raise EngineLoadError(
                f"{name} in {engine_args.OPTION} would cut prompts on a CPU, where vLLM's seeds fail with it: give at "
                f"least {longest} (--max-model-len), or leave it out"
            )
    scheduler.enable_chunked_prefill = False
    scheduler.max_num_batched_tokens = max(scheduler.max_num_batched_tokens, longest)
    scheduler.max_num_scheduled_tokens = None


def _client(vllm: Vllm, config: Any, choice: ClientChoice, *, images: bool) -> Client:
    if choice != "async_llm":
        missing = core_client.missing_names(vllm, images=images)
        if missing:
            logger.warning(
                "vLLM %s has no %s: its public AsyncLLM is used, which takes more CPU", vllm.version_text, missing[0]
            )
        elif choice == "core_client" or vllm.version <= NEWEST:
            return core_client.CoreClient(vllm, config, images=images)
    return AsyncLlmClient(vllm, config)


def _limit_cpu_kv_cache(vllm: Vllm, manifest: Manifest, facts: CheckpointFacts, values: dict[str, Any]) -> None:
    if _CPU_SPACE in os.environ or "kv_cache_memory_bytes" in values:
        return
    size = cpu_kv_cache_bytes(facts.kv_bytes_per_token, manifest.max_batch_size * manifest.max_model_len)
    if vllm.version >= KV_CACHE_BYTES_ON_CPU:
        values["kv_cache_memory_bytes"] = size
    else:
        os.environ[_CPU_SPACE] = str(size // GIB)


def _adapters(version_dir: Path, manifest: Manifest, checkpoint: Path) -> tuple[LoraAdapter, ...]:
    found: list[LoraAdapter] = []
    for name, folder in manifest.lora.adapters.items():
        if not (version_dir / folder).is_dir():
            raise EngineLoadError(f"the adapter {name} is missing at {short(version_dir / folder)}: {BUILD_HINT}")
        taken = [adapter.number for adapter in found]
        try:
            found.append(lora.read(name, version_dir / folder, checkpoint, manifest.lora.max_lora_rank, taken))
        except LoraError as error:
            raise EngineLoadError(f"the adapter {name}: {error}") from None
    return tuple(found)


def failure(error: Exception, cause: str, values: dict[str, Any], *, on_cpu: bool) -> str:
    """One sentence about a start that failed.

    Args:
        error: exception that was raised here.
        cause: last line that the engine core logged; empty if there is none.
        values: arguments of `AsyncEngineArgs`.
        on_cpu: vLLM computes on the CPU.
    """
    said = short_line(cause) or sentence(error)
    if isinstance(error, MemoryError) or any(sign in f"{said} {error}".lower() for sign in _OUT_OF_MEMORY):
        if _HELD in said.lower():
            return (
                f"others use memory of vLLM's share ({said.rstrip('.')}): end them, or lower gpu_memory_utilization "
                f"in the file of {engine_args.OPTION}"
            )
        cache = "raise kv_cache_memory_bytes" if on_cpu else "raise gpu_memory_utilization"
        return (
            f"the memory does not suffice for vLLM ({said.rstrip('.')}): {cache} in the file of {engine_args.OPTION}, "
            f"build with a smaller --max-model-len (now {values['max_model_len']}) or --max-batch-size (now "
            f"{values['max_num_seqs']}), a larger --tp-size, or end what else uses the memory"
        )
    return f"vLLM does not load the model: {said}"
