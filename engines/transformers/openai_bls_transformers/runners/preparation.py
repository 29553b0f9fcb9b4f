"""Preparation of a loaded model for a runner: the choices, its attention and operations, and the sizes of batches."""

from __future__ import annotations

import logging
from typing import Any

import torch
import transformers

from openai_bls.core.checkpoint import CheckpointFacts
from openai_bls.core.machine.memory import available_bytes
from openai_bls.core.manifest import Manifest, first_line
from openai_bls_transformers.attention_spec import head_sizes
from openai_bls_transformers.cache_memory import CPU_CACHE_BYTES, require_context
from openai_bls_transformers.gpu import paged_attention
from openai_bls_transformers.model import fused_layers
from openai_bls_transformers.options import EngineOptions
from openai_bls_transformers.runners.runner import BatchingConfig
from openai_bls_transformers.runners.runner_choice import RunnerChoice, candidates
from openai_bls_transformers.speculation.drafter import SpeculationConfig

logger = logging.getLogger(__name__)

# KV cache on a CPU where nothing else is asked for.
_CPU_CACHE_TOKENS = 32768
# Tokens of one forward pass.
_CPU_STEP_TOKENS = 512
_GPU_STEP_TOKENS = 2048
_PAGED_STEP_TOKENS = 4096
_FLASH_STEP_TOKENS = 8192
_STEPS = 2
"""Steps whose inputs are in memory at the same time."""


def choices(model: Any, max_model_len: int, options: EngineOptions, *, takes_images: bool) -> list[RunnerChoice]:
    """Runners and attentions for a loaded model, whose prompts may hold images, in order of preference.

    Raises:
        EngineLoadError: there is none.
    """
    return candidates(
        type(model),
        model.config,
        max_model_len,
        options,
        on_gpu=model.device.type == "cuda",
        flash_installed=transformers.utils.is_flash_attn_2_available(),
        language_class=type(model.get_decoder()) if takes_images else None,
    )


def set_attention(model: Any, choice: RunnerChoice, options: EngineOptions, loaded: str) -> str | None:
    """Settle attention and operations of a model.

    Args:
        model: model on its device.
        choice: choice of runner and attention.
        options: start-up options of the engine.
        loaded: the attention that the model was loaded with.

    Returns:
        The reason for which it cannot be had; None if it is settled.
    """
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
    return None


def batching_config(
    facts: CheckpointFacts,
    manifest: Manifest,
    options: EngineOptions,
    model: Any,
    choice: RunnerChoice,
    speculation: SpeculationConfig | None,
) -> BatchingConfig:
    """Sizes for a loaded model: what was asked for, else what suits the device.

    Raises:
        ContextLengthError: the cache of one sequence of the longest length does not fit.
    """
    max_batch_size = options.max_batch_size or manifest.max_batch_size
    cache_tokens = options.max_tokens_in_kv_cache or manifest.kv_cache.max_tokens_in_kv_cache
    on_cpu = model.device.type == "cpu"
    paged = paged_attention.in_use(model, "paged")
    # Of the flash-attn package, which reads pages of 256.
    flash = "flash_attention" in str(model.config._attn_implementation)
    masked = not (paged or flash or paged_attention.in_use(model, "varlen"))
    gpu_tokens = _PAGED_STEP_TOKENS if paged else _FLASH_STEP_TOKENS if flash else _GPU_STEP_TOKENS
    step_tokens = max(max_batch_size, options.max_num_tokens or (_CPU_STEP_TOKENS if on_cpu else gpu_tokens))
    if choice.runner == "continuous_batching" and facts.kv_bytes_per_token:
        # Its cache is allocated at once, and so is a mask of all tokens of a step over all of the cache.
        memory = available_bytes() if on_cpu else _free_gpu_bytes(model.device)
        itemsize = 1 if choice.kv_cache_dtype == "fp8" else model.dtype.itemsize
        mask_bytes = step_tokens * model.dtype.itemsize if masked else 0
        beside = 0 if on_cpu or masked else _bytes_beside_cache(model, step_tokens, paged_attention.PAGE_SIZE)
        require_context(
            manifest.max_model_len,
            facts.kv_bytes_per_token * itemsize // 4 + mask_bytes + beside,
            int(memory * manifest.kv_cache.free_memory_fraction),
            on_gpu=not on_cpu,
        )
    wanted = max_batch_size * manifest.max_model_len
    if on_cpu and not cache_tokens:
        # The cache is allocated at once, and a CPU's memory is everybody's.
        affordable = CPU_CACHE_BYTES // (facts.kv_bytes_per_token or 1 << 20)
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
    return BatchingConfig(
        max_batch_size=max_batch_size,
        max_num_tokens=step_tokens,
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
        images=manifest.max_images > 0,
        kv_events=bool(options.kv_events_endpoint),
        cuda_graphs=not on_cpu and (paged or flash) and options.cuda_graphs is not False,
        async_batching=not on_cpu and (not masked if options.async_batching is None else options.async_batching),
    )


def _bytes_beside_cache(model: Any, step_tokens: int, page_size: int) -> int:
    """Bytes that transformers puts aside for each token of the longest sequence, besides the cache.

    Page tables for as many sequences as a step has tokens, indices of what is read, both for two steps at a time, and
    the keys and values of a layer. A small model has less in the cache.
    """
    _, kv_heads, size = head_sizes(model.config.get_text_config())
    return _STEPS * (4 * step_tokens // page_size + 8) + 2 * kv_heads * size * int(model.dtype.itemsize)


def _free_gpu_bytes(device: torch.device) -> int:
    """Memory that is free, with what PyTorch holds of it and does not use."""
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + unused)
