"""Model loader of the embedded engine: the checkpoint on its device, and the sizes of its batches."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Any

import torch
import transformers

from openai_bls.core.checkpoint import CheckpointFacts
from openai_bls.core.manifest import EngineLoadError, Manifest, first_line
from openai_bls.engines.embedded import attention_cpu, attention_eager, fp8_loading
from openai_bls.engines.embedded.drafter import SpeculationConfig
from openai_bls.engines.embedded.gpu import fused_layers, kernel_compiler, paged_attention
from openai_bls.engines.embedded.options import EngineOptions
from openai_bls.engines.embedded.runner import BatchingConfig
from openai_bls.engines.embedded.runner_choice import RunnerChoice, candidates
from openai_bls.engines.embedded.tensor_check import missing_weights
from openai_bls.engines.embedded.tensor_parallel import fused_sums
from openai_bls.engines.embedded.tensor_parallel.peers import peers_of

logger = logging.getLogger(__name__)

# KV cache on a CPU, in bytes and in tokens, where nothing else is asked for.
_CPU_CACHE_BYTES = 256 << 20
_CPU_CACHE_TOKENS = 32768
# Tokens of one forward pass.
_CPU_STEP_TOKENS = 512
_GPU_STEP_TOKENS = 2048
_PAGED_STEP_TOKENS = 4096
_FLASH_STEP_TOKENS = 8192


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads(options: EngineOptions, processes: int = 1) -> int:
    """CPU threads of one of `processes` that share a model."""
    return options.num_threads or max(1, cores() // 2 // processes)


def find_device(wanted: str) -> torch.device:
    """The device named by `EngineOptions.device`; raises `EngineLoadError` if it is not there."""
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise EngineLoadError(f"device is {wanted}, but this machine has no usable GPU")
    return torch.device(wanted)


def load_model(folder: Path, manifest: Manifest, options: EngineOptions, device: torch.device) -> Any:
    """The causal language model in `folder` on its device, with the attention asked for or its class's own default.

    Raises:
        EngineLoadError: it does not load.
    """
    asked = options.attention
    if device.type == "cpu":
        if asked in ("paged", "varlen"):
            raise EngineLoadError(f"attention {asked} is for GPUs")
        attention_cpu.install()
    attention_eager.install()
    with compiling_ahead(folder, manifest, options, device):
        return read_model(folder, manifest, device, None if asked in ("auto", "paged", "varlen") else asked)


def compiling_ahead(
    folder: Path, manifest: Manifest, options: EngineOptions, device: torch.device
) -> contextlib.AbstractContextManager[None]:
    """Compilation of the kernels that go with paged attention, where that may be used, beside what the context does."""
    if options.attention in ("auto", "paged") and device.type == "cuda":
        return kernel_compiler.compiling(folder, manifest, device)
    return contextlib.nullcontext()


def read_model(folder: Path, manifest: Manifest, device: torch.device, implementation: str | None) -> Any:
    """The model with one of transformers' own implementations of attention; raises `EngineLoadError`."""
    dtype = manifest.dtype
    if dtype == "auto" and device.type == "cpu":
        dtype = "float32"
    transformers.utils.logging.disable_progress_bar()
    try:
        unquantized = fp8_loading.config_without_quantization(folder, trust_remote_code=manifest.trust_remote_code)
        # Without `device_map`, which needs the package accelerate: the weights are mapped from their files, and the GPU
        # holds one copy.
        with fp8_loading.unreported_scales(unquantized):
            model, info = transformers.AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype,
                attn_implementation=implementation,
                trust_remote_code=manifest.trust_remote_code,
                local_files_only=True,
                output_loading_info=True,
                **({} if unquantized is None else {"config": unquantized}),
            )
        if problem := missing_weights(info["missing_keys"]):
            # transformers would draw them at random, with a warning.
            raise ValueError(problem)
        fp8_loading.finish(model, folder, manifest, device, stored=unquantized is not None)
        return model.to(device).eval()
    except EngineLoadError:
        raise
    except Exception as error:
        logger.exception("loading the checkpoint failed")
        raise EngineLoadError(f"the checkpoint does not load: {first_line(error)}") from None


def choices(model: Any, max_model_len: int, options: EngineOptions) -> list[RunnerChoice]:
    """Runners and attentions for a loaded model, in order of preference.

    Raises:
        EngineLoadError: there is none.
    """
    found = candidates(
        type(model),
        model.config,
        max_model_len,
        options,
        on_gpu=model.device.type == "cuda",
        flash_installed=transformers.utils.is_flash_attn_2_available(),
    )
    if peers_of(model) is None:
        return found
    batched = [choice for choice in found if choice.runner == "continuous_batching"]
    if not batched:
        raise EngineLoadError(
            "--tp-size: this model is not served on several GPUs by the embedded engine: continuous batching does not "
            f"run it ({found[0].reason})"
        )
    return batched


def set_attention(model: Any, choice: RunnerChoice, options: EngineOptions, loaded: str) -> str | None:
    """Settle attention and operations of a model.

    Args:
        model: on its device.
        choice: says which.
        options: of the engine.
        loaded: the attention that the model was loaded with.

    Returns:
        The reason for which it cannot be had; None if it is settled.
    """
    peers = peers_of(model)
    if peers is None:
        return _set_attention(model, choice, options, loaded)
    with peers.attending(choice, loaded) as problems:
        problem = _set_attention(model, choice, options, loaded)
    return problem or next(iter(problems), None)


def _set_attention(model: Any, choice: RunnerChoice, options: EngineOptions, loaded: str) -> str | None:
    kind = loaded if choice.attention == "auto" else choice.attention
    if kind in ("paged", "varlen"):
        reason = paged_attention.refusal(model, kind, choice.kv_cache_dtype)
        if reason is not None:
            return f"attention {kind} cannot be used: {reason}"
        paged_attention.use(model, kind)
    elif model.config._attn_implementation != kind:
        try:
            model.set_attn_implementation(kind)
        except (ValueError, ImportError) as error:
            return f"attention {kind} cannot be used: {first_line(error)}"
    if options.fused_ops or (options.fused_ops is None and kind == "paged"):
        logger.info("fused operations: %s", fused_layers.fuse(model))
        if peers_of(model) is not None:
            logger.info("sums over the ranks with adds and norms: %d", fused_sums.fuse(model))
    return None


def batching_config(
    facts: CheckpointFacts,
    manifest: Manifest,
    options: EngineOptions,
    model: Any,
    choice: RunnerChoice,
    speculation: SpeculationConfig | None,
) -> BatchingConfig:
    """Sizes for a loaded model: what was asked for, else what suits the device."""
    max_batch_size = options.max_batch_size or manifest.max_batch_size
    cache_tokens = options.max_tokens_in_kv_cache or manifest.kv_cache.max_tokens_in_kv_cache
    on_cpu = model.device.type == "cpu"
    paged = paged_attention.in_use(model, "paged")
    # Of the flash-attn package, which reads pages of 256.
    flash = "flash_attention" in str(model.config._attn_implementation)
    masked = not (paged or flash or paged_attention.in_use(model, "varlen"))
    wanted = max_batch_size * manifest.max_model_len
    if on_cpu and not cache_tokens:
        # The cache is allocated at once, and a CPU's memory is everybody's.
        affordable = _CPU_CACHE_BYTES // (facts.kv_bytes_per_token or 1 << 20)
        cache_tokens = max(min(wanted, affordable, _CPU_CACHE_TOKENS), manifest.max_model_len)
    elif not cache_tokens and facts.kv_bytes_per_token:
        # More than a full batch can use would only make index tensors and attention masks larger.
        free, _ = torch.cuda.mem_get_info(model.device)
        itemsize = 1 if choice.kv_cache_dtype == "fp8" else model.dtype.itemsize
        needed = wanted * facts.kv_bytes_per_token * itemsize // 4
        free = int(free * manifest.kv_cache.free_memory_fraction / 2)
        if needed < free:
            cache_tokens = wanted
        elif choice.runner == "dynamic_cache":  # half of the memory, as a cache that grows is copied
            cache_tokens = max(free * wanted // needed, manifest.max_model_len)
    if choice.runner == "dynamic_cache" and not cache_tokens:
        cache_tokens = wanted
    if options.cuda_graphs and not (paged or flash):
        logger.warning("no CUDA graphs: they need paged or flash attention")
    gpu_tokens = _PAGED_STEP_TOKENS if paged else _FLASH_STEP_TOKENS if flash else _GPU_STEP_TOKENS
    step_tokens = _CPU_STEP_TOKENS if on_cpu else gpu_tokens
    return BatchingConfig(
        max_batch_size=max_batch_size,
        max_num_tokens=max(max_batch_size, options.max_num_tokens or step_tokens),
        page_size=256 if flash else paged_attention.PAGE_SIZE,
        max_tokens_in_kv_cache=cache_tokens,
        free_memory_fraction=manifest.kv_cache.free_memory_fraction,
        prefix_sharing=options.prefix_sharing,
        max_request_tokens=manifest.max_model_len,
        shared_steps=choice.shared_steps,
        kv_cache_dtype=choice.kv_cache_dtype,
        paged=paged,
        max_step_seconds=options.max_step_ms / 1e3,
        speculation=speculation,
        cuda_graphs=not on_cpu and (paged or flash) and options.cuda_graphs is not False,
        async_batching=not on_cpu and (not masked if options.async_batching is None else options.async_batching),
    )
