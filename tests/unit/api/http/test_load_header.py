"""The engine's load in the head of an answer, for a proxy that asks for it."""

from __future__ import annotations

import asyncio
import json

import pytest

from openai_bls.core.engine import EngineStats
from tests.unit.api.connections import CHAT
from tests.unit.api.http_support import application
from tests.unit.core_support import EOS, Answered, Bench, ask, engine_info, until

STATS = EngineStats(3, 2, 0.25, 9, 40, kv_blocks=400, kv_block_size=32)
HEADER = "endpoint-load-metrics"
METRICS = {
    "kv_cache_utilization": 0.25,
    "max_token_capacity": 12800,
    "kv_cache_usage_perc": 0.25,
    "num_requests_waiting": 2,
}


async def answered(bench: Bench, form: str | None, **fields: object) -> Answered:
    headers = [] if form is None else [(f"{HEADER}-format", form)]
    app = application(bench)
    before = len(bench.engine.requests)
    asking = asyncio.create_task(ask(app, "POST", "/v1/chat/completions", {**CHAT, **fields}, headers))
    await until(lambda: asking.done() or len(bench.engine.requests) > before)
    if not asking.done():
        bench.engine.deliver(before, "x", "stop", stop_token_id=EOS)
    return await asking


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", ["json", "JSON", "text", "Text"])
async def test_the_load_is_told_in_the_form_that_is_asked_for(form: str, stream: bool) -> None:
    bench = Bench()
    bench.engine.stats = STATS
    answer = await answered(bench, form, stream=stream)
    assert answer.status == 200
    kind, _, report = answer.headers[HEADER].partition(" ")
    assert kind == form.upper()
    if kind == "JSON":
        assert json.loads(report) == {"named_metrics": METRICS}
    else:
        pairs = dict(pair.split("=") for pair in report.split(", "))
        assert {name: float(value) for name, value in pairs.items()} == {
            f"named_metrics.{name}": value for name, value in METRICS.items()
        }


@pytest.mark.parametrize("form", [None, "", "bin", "json, text"])
async def test_another_form_gets_no_header(form: str | None) -> None:
    bench = Bench()
    bench.engine.stats = STATS
    answer = await answered(bench, form)
    assert answer.status == 200
    assert HEADER not in answer.headers


async def test_what_is_not_known_is_not_told() -> None:
    bench = Bench(engine_info(lora_names=("poet",)))
    assert HEADER not in (await answered(bench, "json")).headers
    bench.engine.stats = EngineStats(3, 2, float("nan"), 9, 40)
    told = (await answered(bench, "json", model="poet")).headers[HEADER]
    assert json.loads(told.removeprefix("JSON ")) == {"named_metrics": {"num_requests_waiting": 2}}
    unknown = await answered(bench, "json", model="nothing")
    assert unknown.status == 404
    assert HEADER not in unknown.headers


async def test_an_error_of_a_known_model_tells_the_load_too() -> None:
    bench = Bench(engine_info(max_model_len=1))
    bench.engine.stats = STATS
    answer = await answered(bench, "json")
    assert answer.status == 400
    assert json.loads(answer.headers[HEADER].removeprefix("JSON ")) == {"named_metrics": METRICS}


async def test_paths_without_an_engine_tell_nothing() -> None:
    bench = Bench()
    bench.engine.stats = STATS
    answer = await ask(application(bench), "GET", "/v1/models", headers=[(f"{HEADER}-format", "json")])
    assert answer.status == 200
    assert HEADER not in answer.headers
