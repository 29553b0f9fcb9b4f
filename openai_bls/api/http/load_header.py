"""Response header `endpoint-load-metrics` (ORCA), by which a proxy that asks for it learns the engine's load.

The request says in which form: `endpoint-load-metrics-format: json` or `text`, in any case. Another form gets no
header, as vLLM and tritonserver have it: a proxy's wish is no reason to fail its client's request. The metrics have the
names of both.
"""

from __future__ import annotations

import json
import math

from openai_bls.pipeline.service import Service

FORMAT_HEADER = b"endpoint-load-metrics-format"
LOAD_HEADER = "endpoint-load-metrics"


def load_report(service: Service, name: str, form: str) -> str | None:
    """Value of the header; None if there is nothing to tell.

    Args:
        service: service that has the engine.
        name: name of an engine's model or adapter, or of anything else that was asked for.
        form: value of the request's header.
    """
    form = form.strip().upper()
    target = service.models.engine_target(name) if name else None
    if target is None or form not in ("JSON", "TEXT"):
        return None
    stats = target.model.engine.stats
    if stats is None:
        return None
    metrics: dict[str, float] = {}
    if not math.isnan(stats.kv_cache_usage):
        metrics["kv_cache_utilization"] = stats.kv_cache_usage
        if stats.kv_blocks:
            metrics["max_token_capacity"] = stats.kv_blocks * stats.kv_block_size
        metrics["kv_cache_usage_perc"] = stats.kv_cache_usage
    metrics["num_requests_waiting"] = service.admission(target.model).waiting + stats.waiting
    if form == "JSON":
        return f"JSON {json.dumps({'named_metrics': metrics})}"
    return "TEXT " + ", ".join(f"named_metrics.{metric}={value}" for metric, value in metrics.items())
