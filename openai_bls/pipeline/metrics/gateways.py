"""Load of the engines under the names that gateways know, taken at each scrape.

NVIDIA's are those of TensorRT-LLM's C++ backend, which gateways look for (the type `triton-tensorrt-llm` of the Gateway
API's endpoint picker) and from which tritonserver computes its `endpoint-load-metrics` header. vLLM's are those that
gateways look for by default, and the only ones that tell of adapters.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric

from openai_bls.pipeline.metrics.adapters import AdapterRequests
from openai_bls.pipeline.metrics.engine_load import Loads

_VERSION = "1"
"""Version folder of the models in the repository."""
_MODEL = ("model_name",)
LORA = "vllm:lora_requests_info"
"""Family whose labels tell what changes: each state of the adapters is a series, which is gone at the next."""


def nvidia_families(loads: Loads, waiting: Mapping[str, float]) -> Iterator[Metric]:
    """Load of the engines under NVIDIA's names; none of an engine whose backend has them on Triton's port by itself.

    Args:
        loads: loads of the engines.
        waiting: number of requests that wait for each engine.
    """
    # The C++ backend tells its cache to Triton alone.
    told = {name: load for name, load in loads.items() if not math.isnan(load.stats.kv_cache_usage)}
    requests = GaugeMetricFamily(
        "nv_trt_llm_request_metrics",
        "Requests of the engine by request_type, as TensorRT-LLM's backend counts them: waiting and scheduled, both "
        "together (active), and the most that may be scheduled (max).",
        labels=("model", "request_type", "version"),
    )
    blocks = GaugeMetricFamily(
        "nv_trt_llm_kv_cache_block_metrics",
        "Blocks of the KV cache by kv_cache_block_type, as TensorRT-LLM's backend counts them: all (max), used, free, "
        "the share in use (fraction), and the tokens of one (tokens_per).",
        labels=("model", "kv_cache_block_type", "version"),
    )
    for name, load in told.items():
        stats = load.stats
        counts = {
            "waiting": waiting[name],
            "scheduled": stats.running,
            "active": waiting[name] + stats.running,
            "max": load.max_batch_size,
        }
        for kind, value in counts.items():
            requests.add_metric((name, kind, _VERSION), value)
        if stats.kv_blocks:
            used = stats.kv_blocks_used
            cache = {
                "max": stats.kv_blocks,
                "used": used,
                "free": stats.kv_blocks - used,
                "fraction": stats.kv_cache_usage,
                "tokens_per": stats.kv_block_size,
            }
            for kind, value in cache.items():
                blocks.add_metric((name, kind, _VERSION), value)
    if told:
        yield requests
        yield blocks


def vllm_families(
    loads: Loads, waiting: Mapping[str, float], adapters: Mapping[str, AdapterRequests]
) -> Iterator[Metric]:
    """Load of the engines under vLLM's names, as far as an engine tells it.

    Args:
        loads: loads of the engines.
        waiting: number of requests that wait for each engine.
        adapters: requests for adapters, by name of the engine's model.
    """
    queued = GaugeMetricFamily("vllm:num_requests_waiting", "Requests that wait for the engine.", labels=_MODEL)
    running = GaugeMetricFamily("vllm:num_requests_running", "Sequences in the engine's batch.", labels=_MODEL)
    usage = GaugeMetricFamily(
        "vllm:kv_cache_usage_perc", "Share of the engine's KV cache in use, 0 to 1.", labels=_MODEL
    )
    cache = GaugeMetricFamily(
        "vllm:cache_config_info",
        "Size of the engine's KV cache, in its labels; the value is 1.",
        labels=(*_MODEL, "block_size", "num_gpu_blocks"),
    )
    loras = GaugeMetricFamily(
        LORA,
        "Adapters that have requests, in its labels; the value is the time of the update, in seconds since 1970.",
        labels=(*_MODEL, "max_lora", "running_lora_adapters", "waiting_lora_adapters"),
    )
    for name, load in loads.items():
        stats = load.stats
        queued.add_metric((name,), waiting[name])
        running.add_metric((name,), stats.running)
        if not math.isnan(stats.kv_cache_usage):
            usage.add_metric((name,), stats.kv_cache_usage)
        if stats.kv_blocks:
            cache.add_metric((name, str(stats.kv_block_size), str(stats.kv_blocks)), 1)
        if load.most_adapters:
            asked = adapters.get(name, AdapterRequests())
            labels = (str(load.most_adapters), ",".join(sorted(asked.running)), ",".join(sorted(asked.waiting)))
            loras.add_metric((name, *labels), time.time())
    yield from (family for family in (queued, running, usage, cache, loras) if family.samples)
