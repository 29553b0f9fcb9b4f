"""Metrics of the engines: their load, taken at each scrape, under our names and under NVIDIA's.

NVIDIA's are those of TensorRT-LLM's C++ backend, which gateways look for (the type `triton-tensorrt-llm` of the Gateway
API's endpoint picker) and from which tritonserver computes its `endpoint-load-metrics` header.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from openai_bls.core.engine import EngineStats
from openai_bls.pipeline.metrics.restarts import restart_counts
from openai_bls.pipeline.models.readiness import Readiness
from openai_bls.pipeline.models.registry import Models

_PREFIX = "openai_bls_"


class Load(NamedTuple):
    """Load of one engine, about a second old."""

    stats: EngineStats
    max_batch_size: int
    """Most sequences of a batch."""


Loads = Mapping[str, Load]
"""Loads of the engines that tell theirs, by name of the model."""


def loads(models: Models) -> Loads:
    """Loads of all engines that tell theirs."""
    found = {model.info.model_name: (model.engine.stats, model.info.max_batch_size) for model in list(models)}
    return {name: Load(stats, places) for name, (stats, places) in found.items() if stats is not None}


def waiting(loads: Loads, queued: Mapping[str, float]) -> dict[str, float]:
    """Number of requests that wait for each engine, wherever they wait.

    Args:
        loads: loads of the engines.
        queued: number of requests in the queues of `openai_bls`, by name of the model.
    """
    names = dict.fromkeys((*loads, *queued))
    return {name: queued.get(name, 0.0) + (loads[name].stats.waiting if name in loads else 0) for name in names}


def gauge(name: str, documentation: str, values: Mapping[str, float]) -> Metric:
    """A gauge with a value for each model."""
    family = GaugeMetricFamily(name, documentation, labels=("model",))
    for model, value in values.items():
        family.add_metric((model,), value)
    return family


def states(models: Models, readiness: Readiness) -> Iterator[Metric]:
    """Whether engines and Triton models are there, and how often the launcher has restarted them."""
    yield gauge(
        _PREFIX + "engine_up",
        "1 if the model's engine is loaded and has not failed, else 0, about a second ago.",
        {model.info.model_name: float(model.engine.connected and not model.failed) for model in list(models)},
    )
    parts = GaugeMetricFamily(
        _PREFIX + "model_up",
        "1 if the Triton model answers, 0 if it has died or does not answer; none for one that is not loaded.",
        labels=("triton_model",),
    )
    for name, state in readiness.states.items():
        if state != "absent":
            parts.add_metric((name,), float(state == "up"))
    yield parts
    restarts = CounterMetricFamily(
        _PREFIX + "restarts",
        "Restarts by the launcher since it began: of tritonserver, and of Triton models that had died or hung.",
        labels=("part",),
    )
    for part, count in restart_counts().items():
        restarts.add_metric((part,), count)
    yield restarts


def families(loads: Loads) -> Iterator[Metric]:
    """Load of the engines under our names."""
    for name, (field, kind, documentation) in _FAMILIES.items():
        family = kind(_PREFIX + name, documentation, labels=("model",))
        for model_name, load in loads.items():
            family.add_metric((model_name,), getattr(load.stats, field))
        yield family


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


_VERSION = "1"
"""Version folder of the models in the repository."""

_FAMILIES: dict[str, tuple[str, type[GaugeMetricFamily] | type[CounterMetricFamily], str]] = {
    "engine_sequences_running": (
        "running",
        GaugeMetricFamily,
        "Sequences in the engine's current batch, about a second ago.",
    ),
    "engine_sequences_waiting": (
        "waiting",
        GaugeMetricFamily,
        "Sequences in the engine that wait for a place in its batch, about a second ago: a few at any load, since "
        "the queue is in openai_bls (openai_bls_requests_waiting).",
    ),
    "engine_kv_cache_usage_ratio": (
        "kv_cache_usage",
        GaugeMetricFamily,
        "Share of the engine's KV cache in use, 0 to 1, about a second ago.",
    ),
    "engine_kv_cache_blocks": (
        "kv_blocks",
        GaugeMetricFamily,
        "Blocks of the engine's KV cache; 0 if it does not tell.",
    ),
    "engine_kv_cache_blocks_used": (
        "kv_blocks_used",
        GaugeMetricFamily,
        "Blocks of the engine's KV cache that sequences hold, about a second ago.",
    ),
    "engine_kv_cache_block_tokens": (
        "kv_block_size",
        GaugeMetricFamily,
        "Tokens per block of the engine's KV cache; 0 if it does not tell.",
    ),
    "engine_steps": ("steps", CounterMetricFamily, "Steps of the engine since it was loaded."),
    "engine_restarts": (
        "restarts",
        CounterMetricFamily,
        "Restarts of the engine's own process, where it has one, since the engine was loaded.",
    ),
    "engine_generated_tokens": (
        "generated_tokens",
        CounterMetricFamily,
        "Tokens that the engine has sampled since it was loaded, for whatever client.",
    ),
    "engine_spec_decode_num_draft_tokens": (
        "draft_tokens",
        CounterMetricFamily,
        "Tokens that speculative decoding has drafted since the engine was loaded.",
    ),
    "engine_spec_decode_num_accepted_tokens": (
        "accepted_draft_tokens",
        CounterMetricFamily,
        "Drafted tokens that became output since the engine was loaded.",
    ),
}
