"""Loading a checkpoint for the embedded engine, and choosing its sizes."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers

from openai_bls.engine import attention
from openai_bls.engine.batching import BatchingConfig
from openai_bls.engine.checkpoint import CheckpointFacts
from openai_bls.engine.manifest import EngineLoadError, Manifest

if TYPE_CHECKING:
    from openai_bls.engine.select import EngineOptions

logger = logging.getLogger(__name__)

_CPU_CACHE_BYTES = 256 << 20
_CPU_CACHE_TOKENS = 32768
_CPU_STEP_TOKENS = 512
_GPU_STEP_TOKENS = 2048
_FLASH_STEP_TOKENS = 8192


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def find_device(wanted: str) -> torch.device:
    """The device named by `EngineOptions.device`; raises `EngineLoadError` if it is not there."""
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise EngineLoadError(f"device is {wanted}, but this machine has no usable GPU")
    return torch.device(wanted)


def load_model(folder: Path, manifest: Manifest, options: EngineOptions, device: torch.device) -> Any:
    """The causal language model in `folder` on its device; raises `EngineLoadError` if it does not load."""
    dtype = manifest.dtype
    if dtype == "auto" and device.type == "cpu":
        dtype = "float32"
    implementation = options.attention
    if implementation == "auto":
        flash = device.type == "cuda" and transformers.utils.is_flash_attn_2_available()
        implementation = "flash_attention_2" if flash else "sdpa"
    if device.type == "cpu":
        attention.install()
    transformers.utils.logging.disable_progress_bar()
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation=implementation,
            trust_remote_code=manifest.trust_remote_code,
            local_files_only=True,
        )
        return model.to(device).eval()
    except Exception as error:
        logger.exception("loading the checkpoint failed")
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise EngineLoadError(f"the checkpoint does not load: {reason}") from None


def batching_config(facts: CheckpointFacts, manifest: Manifest, options: EngineOptions, model: Any) -> BatchingConfig:
    """Sizes for a loaded model: what was asked for, else what suits the device."""
    max_batch_size = options.max_batch_size or manifest.max_batch_size
    cache_tokens = options.max_tokens_in_kv_cache or manifest.kv_cache.max_tokens_in_kv_cache
    on_cpu = model.device.type == "cpu"
    flash = "flash" in str(model.config._attn_implementation)
    wanted = max_batch_size * manifest.max_model_len
    if on_cpu and not cache_tokens:
        # The cache is allocated at once, and a CPU's memory is everybody's.
        affordable = _CPU_CACHE_BYTES // (facts.kv_bytes_per_token or 1 << 20)
        cache_tokens = max(min(wanted, affordable, _CPU_CACHE_TOKENS), manifest.max_model_len)
    elif not cache_tokens and facts.kv_bytes_per_token:
        # More than a full batch can use would only make the attention masks larger.
        free, _ = torch.cuda.mem_get_info(model.device)
        needed = wanted * facts.kv_bytes_per_token * model.dtype.itemsize // 4
        if needed < free * manifest.kv_cache.free_memory_fraction / 2:
            cache_tokens = wanted
    step_tokens = _FLASH_STEP_TOKENS if flash else _GPU_STEP_TOKENS
    return BatchingConfig(
        max_batch_size=max_batch_size,
        max_num_tokens=max(max_batch_size, options.max_num_tokens or (_CPU_STEP_TOKENS if on_cpu else step_tokens)),
        # Flash attention reads pages of 256; elsewhere small ones let short prefixes be shared.
        page_size=256 if flash else 32,
        max_tokens_in_kv_cache=cache_tokens,
        free_memory_fraction=manifest.kv_cache.free_memory_fraction,
        prefix_sharing=options.prefix_sharing,
        cuda_graphs=options.cuda_graphs and not on_cpu,
    )
