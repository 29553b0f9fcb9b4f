"""Arguments of vLLM's `AsyncEngineArgs` from the manifest and the settings of config.pbtxt."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openai_bls.core.engine import LoraError
from openai_bls.core.manifest import EngineLoadError, KvCacheSettings, Manifest
from openai_bls.core.settings import EngineSettings
from openai_bls.engines.capabilities import MAX_LOGPROBS
from openai_bls.engines.images.processor import has_processor
from openai_bls.engines.kv_events.publisher import config_of
from openai_bls_vllm import pooling
from openai_bls_vllm.arguments.engine_args import OPTION, check
from openai_bls_vllm.lora import vllm_max_rank
from openai_bls_vllm.record import VllmRecord

_INSTEAD = {
    "kv_cache_free_gpu_mem_fraction": "gpu_memory_utilization, vLLM's share of the whole memory,",
    "max_tokens_in_paged_kv_cache": "kv_cache_memory_bytes or num_gpu_blocks_override",
    "kv_cache_host_memory_bytes": "kv_offloading_size",
    "max_attention_window_size": "nothing: vLLM takes the windows of config.json;",
}
"""Setting without an equal meaning → what to give in `OPTION`."""

_DRAFTS = "per_request_spec_decode_metrics"
"""Argument, from 0.29 on, with which vLLM tells of each request what was drafted."""


def engine_args(
    checkpoint: Path,
    manifest: Manifest,
    settings: EngineSettings,
    *,
    fields: Mapping[str, str],
    version: str,
    on_cpu: bool,
    tokenizer: Path | None,
) -> dict[str, Any]:
    """Arguments of `AsyncEngineArgs`; those of `--extra-engine-args` go before the defaults here.

    Args:
        checkpoint: folder with config.json and weights.
        manifest: manifest of the engine.
        settings: settings of config.pbtxt.
        fields: name → type of the fields of the installed `AsyncEngineArgs`.
        version: version of vLLM.
        on_cpu: vLLM computes on the CPU.
        tokenizer: folder of the tokenizer, for grammars; None if there is none.

    Raises:
        EngineLoadError: a setting or an argument that the installed vLLM cannot honour; one sentence.
    """
    record = VllmRecord.of(manifest)
    require_settings(manifest, settings)
    own: dict[str, Any] = {
        "model": str(checkpoint),
        "served_model_name": manifest.model_name,
        "max_model_len": manifest.max_model_len,
        "max_num_seqs": manifest.max_batch_size,
        "dtype": "float32" if on_cpu and manifest.dtype == "auto" else manifest.dtype,
        "tensor_parallel_size": record.tensor_parallel_size,
        "pipeline_parallel_size": record.pipeline_parallel_size,
        "trust_remote_code": manifest.trust_remote_code,
        "skip_tokenizer_init": tokenizer is None,
        "generation_config": "vllm",
        "disable_log_stats": False,
        "enable_log_requests": False,
        "max_logprobs": MAX_LOGPROBS,
        "logprobs_mode": "raw_logprobs",
    }
    own |= pooling.engine_args(record.task)
    if tokenizer is not None:
        own["tokenizer"] = str(tokenizer)
    if record.quant:
        own["quantization"] = record.quant
    if settings.enable_kv_cache_reuse is not None:
        own["enable_prefix_caching"] = settings.enable_kv_cache_reuse
    if settings.enable_chunked_context is not None:
        own["enable_chunked_prefill"] = settings.enable_chunked_context
    if manifest.max_images or has_processor(checkpoint):
        own["limit_mm_per_prompt"] = {"image": manifest.max_images, "video": 0, "audio": 0}
    own |= _lora(manifest, on_cpu=on_cpu) | _kv_events(settings)
    defaults: dict[str, Any] = {}
    if on_cpu:
        # Compiling a model takes minutes there.
        defaults["enforce_eager"] = True
    extra = check(record.extra_engine_args, fields, version)
    if "limit_mm_per_prompt" in own and "limit_mm_per_prompt" in extra:
        raise EngineLoadError(
            f"limit_mm_per_prompt in {OPTION} is not for a model that takes images: give --max-images"
        )
    if "kv_events_config" in own and "kv_events_config" in extra:
        raise EngineLoadError(f"kv_events_config in {OPTION} and kv_events_endpoint say the same: leave one out")
    if extra.get("speculative_config") and _DRAFTS in fields:
        own[_DRAFTS] = "summary"
    values = {**defaults, **own, **extra}
    missing = sorted(set(own) - set(fields))
    if missing:
        raise EngineLoadError(f"the installed vLLM has no {', '.join(missing)} in AsyncEngineArgs: install another one")
    return values


def require_settings(manifest: Manifest, settings: EngineSettings) -> None:
    """Raise `EngineLoadError` for a setting that has no equal meaning in vLLM."""
    for name, instead in _INSTEAD.items():
        if getattr(settings, name):
            raise EngineLoadError(
                f"{name} in config.pbtxt is not for vLLM: leave it out; give {instead} in the file of {OPTION}"
            )
    if settings.batch_scheduler_policy == "guaranteed_no_evict":
        raise EngineLoadError(
            "batch_scheduler_policy guaranteed_no_evict in config.pbtxt is not for vLLM, which admits requests as "
            "max_utilization does: leave it out"
        )
    if settings.guided_decoding_backend == "xgrammar":
        raise EngineLoadError(
            "guided_decoding_backend xgrammar in config.pbtxt is not for vLLM, whose grammars are enforced by "
            "llguidance: leave it out"
        )
    if manifest.kv_cache != KvCacheSettings():
        raise EngineLoadError(
            "the manifest sets the size of the KV cache in the embedded engine's terms: build again without "
            f"--max-tokens-in-kv-cache, and give kv_cache_memory_bytes in the file of {OPTION}"
        )


def _kv_events(settings: EngineSettings) -> dict[str, Any]:
    config = config_of(settings.kv_events_endpoint, settings.kv_events_replay_endpoint, settings.kv_events_topic)
    if config is None:
        return {}
    values = {"endpoint": config.endpoint, "replay_endpoint": config.replay_endpoint or None, "topic": config.topic}
    return {"kv_events_config": {"enable_kv_cache_events": True, "publisher": "zmq", **values}}


def _lora(manifest: Manifest, *, on_cpu: bool) -> dict[str, Any]:
    room = manifest.lora.max_loras
    if not room:
        return {}
    try:
        rank = vllm_max_rank(manifest.lora.max_lora_rank)
    except LoraError as error:
        raise EngineLoadError(f"{error}: build again with a smaller one") from None
    # On a CPU a row without an adapter takes the last slot's (index -1): one more slot, which stays empty.
    slots = room + on_cpu
    return {"enable_lora": True, "max_loras": slots, "max_cpu_loras": slots, "max_lora_rank": rank}
