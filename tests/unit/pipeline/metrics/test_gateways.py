"""The names that gateways know, by the setting `gateway_metrics`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from openai_bls.core.engine import EngineStats
from openai_bls.core.settings import OpenAiBlsSettings, SettingsError, load
from openai_bls.pipeline.service import Service
from tests.unit.core_support import Bench, chat, engine_info, request_context
from tests.unit.pipeline.serving import answered

STATS = EngineStats(3, 2, 0.25, 9, 40, kv_blocks=400, kv_block_size=32)
LOADED = engine_info(max_loras=4, lora_names=("clerk", "poet"))


async def families(service: Service) -> dict[str, Metric]:
    page = await service.metrics.scrape()
    return {family.name: family for family in text_string_to_metric_families(page.decode())}


def only(family: Metric) -> tuple[dict[str, str], float]:
    [sample] = family.samples
    return sample.labels, sample.value


@pytest.mark.parametrize(
    ("style", "prefixes"), [("nvidia", {"nv"}), ("vllm", {"vllm"}), ("both", {"nv", "vllm"}), ("none", set())]
)
async def test_the_setting_chooses_the_names(style: Any, prefixes: set[str]) -> None:
    bench = Bench(LOADED, gateway_metrics=style)
    bench.engine.stats = STATS
    found = await families(bench.service)
    assert {name.replace(":", "_").partition("_")[0] for name in found} - {"openai"} == prefixes
    assert "openai_bls_adapter_requests" not in found


def test_a_wrong_style_is_refused() -> None:
    with pytest.raises(SettingsError, match="gateway_metrics"):
        load(OpenAiBlsSettings, {"gateway_metrics": "sglang"}, {})


async def test_vllms_names() -> None:
    bench = Bench(gateway_metrics="vllm")
    bench.engine.stats = STATS
    bench.service.metrics.queue_of("tiny")(7, 70)
    found = await families(bench.service)
    tiny = {"model_name": "tiny"}
    assert only(found["vllm:num_requests_waiting"]) == (tiny, 9)
    assert only(found["vllm:num_requests_running"]) == (tiny, 3)
    assert only(found["vllm:kv_cache_usage_perc"]) == (tiny, 0.25)
    assert only(found["vllm:cache_config_info"]) == ({**tiny, "block_size": "32", "num_gpu_blocks": "400"}, 1)
    # An engine without adapters.
    assert "vllm:lora_requests_info" not in found


async def test_what_an_engine_does_not_tell_is_left_out() -> None:
    bench = Bench(gateway_metrics="both")
    bench.engine.stats = EngineStats(3, 2, float("nan"), 9, 40)
    found = await families(bench.service)
    assert {name for name in found if not name.startswith("openai_bls_")} == {
        "vllm:num_requests_waiting",
        "vllm:num_requests_running",
    }


async def adapters(service: Service) -> tuple[str, str]:
    """Running and waiting adapters."""
    before = time.time()
    labels, value = only((await families(service))["vllm:lora_requests_info"])
    assert before <= value <= time.time()
    assert (labels["model_name"], labels["max_lora"]) == ("tiny", "4")
    return labels["running_lora_adapters"], labels["waiting_lora_adapters"]


async def settled(bench: Bench, waiting: int, submitted: int) -> None:
    admission = bench.service.admission(bench.model)
    while admission.waiting != waiting or len(bench.engine.requests) != submitted:
        await asyncio.sleep(0)


async def test_adapters_that_wait_and_that_run() -> None:
    # One place in the batch, and one sequence ahead.
    info = engine_info(max_loras=4, lora_names=("clerk", "poet"), max_batch_size=1)
    bench = Bench(info, gateway_metrics="vllm")
    service = bench.service
    bench.engine.stats = STATS
    assert await adapters(service) == ("", "")

    def asked() -> Iterator[asyncio.Task[Any]]:
        for model in ("poet", "tiny", "poet", "clerk", "clerk"):
            yield asyncio.create_task(answered(service, request_context(), chat(model=model)))

    tasks = list(asked())
    await settled(bench, 3, 2)
    assert await adapters(service) == ("poet", "clerk,poet")
    bench.engine.deliver(1, "x", "stop")
    await settled(bench, 2, 3)
    assert await adapters(service) == ("poet", "clerk")
    bench.engine.deliver(0, "x", "stop")
    bench.engine.deliver(2, "x", "stop")
    await settled(bench, 0, 5)
    assert await adapters(service) == ("clerk", "")
    # One client leaves, one engine fails.
    tasks[3].cancel()
    bench.engine.deliver(4, [], "error", error="x")
    await asyncio.gather(*tasks, return_exceptions=True)
    assert await adapters(service) == ("", "")


async def test_an_adapter_whose_request_leaves_the_queue() -> None:
    bench = Bench(engine_info(max_loras=4, lora_names=("poet",), max_batch_size=1), gateway_metrics="vllm")
    bench.engine.stats = STATS
    tasks = [
        asyncio.create_task(answered(bench.service, request_context(), chat(model=model)))
        for model in ("tiny", "tiny", "poet")
    ]
    await settled(bench, 1, 2)
    assert await adapters(bench.service) == ("", "poet")
    tasks[2].cancel()
    await settled(bench, 0, 2)
    assert await adapters(bench.service) == ("", "")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_adapters_are_not_counted_for_nobody() -> None:
    assert Bench(LOADED).service.metrics.adapter_request("tiny", "poet") is None
    assert Bench(LOADED, gateway_metrics="vllm").service.metrics.adapter_request("tiny", None) is None


def test_the_metrics_port_keeps_no_series_that_comes_and_goes() -> None:
    bench = Bench(LOADED, gateway_metrics="vllm")
    bench.engine.stats = STATS
    names = {family.name for family in bench.service.metrics.shared()}
    assert "vllm:num_requests_waiting" in names
    assert "vllm:lora_requests_info" not in names
