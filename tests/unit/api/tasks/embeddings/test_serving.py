"""Embeddings of an engine's model."""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import Sequence
from typing import Any

import pytest

from openai_bls.api.common.bodies import MAX_INPUTS
from openai_bls.core.engine_types import GenerationRequest, PromptRequest, PromptResult
from tests.unit.api.http_support import application, asked, given_up, refused
from tests.unit.core_support import VOCAB_SIZE, WAIT_S, Answered, Bench, ask, engine_info, token_ids, until

PATH = "/v1/embeddings"
VECTOR = [0.6, -0.8, 1e-7]


def embedded(bench: Bench, body: dict[str, Any], vectors: Sequence[list[float]] = (VECTOR,)) -> Any:
    """The answer, for which the engine sends `vectors` in the order of its requests."""

    def feed() -> None:
        assert len(bench.engine.requests) == len(vectors)
        for at, vector in enumerate(vectors):
            bench.engine.deliver(at, [], "stop", embedding=vector)

    answered = asked(bench, PATH, body, feed)
    assert answered.status == 200
    return answered.json()


def test_an_answer() -> None:
    bench = Bench()
    assert embedded(bench, {"model": "openai_bls", "input": "hé", "user": "u"}) == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": VECTOR}],
        "model": "openai_bls",
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }
    assert bench.engine.requests == [
        GenerationRequest(request_id=1, prompt_token_ids=token_ids("hé"), max_tokens=0, pooling="last")
    ]
    (record,) = bench.records
    assert (record.endpoint, record.outcome, record.usage.prompt_tokens) == ("embeddings", "done", 3)
    assert bench.busy == [1, 0]


def test_base64_is_little_endian_float32() -> None:
    answer = embedded(Bench(), {"input": "x", "encoding_format": "base64", "dimensions": 3})
    assert answer["model"] == "tiny"
    raw = base64.b64decode(answer["data"][0]["embedding"], validate=True)
    assert struct.unpack("<3f", raw) == pytest.approx(VECTOR)


@pytest.mark.parametrize(
    ("given_input", "prompts"),
    [
        ("ab", [token_ids("ab")]),
        (["ab", "c"], [token_ids("ab"), token_ids("c")]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ("x" * 1000, [token_ids("x") * 1000]),
    ],
)
def test_the_forms_of_input(given_input: Any, prompts: list[list[int]]) -> None:
    bench = Bench()
    answer = embedded(bench, {"input": given_input, "pooling": "mean"}, [[1.0]] * len(prompts))
    assert [request.prompt_token_ids for request in bench.engine.requests] == sorted(prompts, key=len)
    assert {request.pooling for request in bench.engine.requests} == {"mean"}
    total = sum(map(len, prompts))
    assert answer["usage"] == {"prompt_tokens": total, "total_tokens": total}


def test_answers_keep_the_inputs_order_whichever_comes_first() -> None:
    bench = Bench()

    def feed() -> None:
        for at in (2, 0, 1):
            bench.engine.deliver(at, [], "stop", embedding=[float(at)])

    answer = asked(bench, PATH, {"input": ["a", "b", "c"]}, feed).json()
    assert [(item["index"], item["embedding"]) for item in answer["data"]] == [(0, [0.0]), (1, [1.0]), (2, [2.0])]


@pytest.mark.parametrize(("given_value", "meant"), [(None, True), (True, True), (False, False)])
def test_special_tokens_are_added_unless_not_wanted(given_value: bool | None, meant: bool) -> None:
    bench = Bench()
    embedded(bench, {"input": ["x"], "add_special_tokens": given_value})
    assert bench.prompts.requests == [PromptRequest(prompts=["x"], add_special_tokens=meant, max_prompt_tokens=1000)]


def test_an_adapter_is_named_to_the_engine() -> None:
    bench = Bench(info=engine_info(lora_names=("poet",)))
    assert embedded(bench, {"input": "x", "model": "poet"})["model"] == "poet"
    assert bench.engine.requests[0].lora_name == "poet"
    assert bench.records[0].model == "poet"


NO_INPUT: list[Any] = [
    *(1, [], ["a", 1], [[1], "a"], [[]], ""),
    *([VOCAB_SIZE], ["x"] * (MAX_INPUTS + 1)),
]


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "input", "missing_required_parameter"),
        *(({"input": value}, "input", None) for value in NO_INPUT),
        *(({"input": value}, "input[1]", None) for value in (["a", ""], [[1], [VOCAB_SIZE]])),
        ({"input": "x" * 1001}, "input", "context_length_exceeded"),
        ({"input": ["x", "x" * 1001]}, "input[1]", "context_length_exceeded"),
        ({"input": "x", "encoding_format": "hex"}, "encoding_format", None),
        ({"input": "x", "dimensions": 0}, "dimensions", None),
        ({"input": "x", "pooling": "cls"}, "pooling", None),
        ({"input": "x", "normalize": True}, "normalize", "unknown_parameter"),
    ],
)
def test_bad_bodies_are_refused_by_name(body: dict[str, Any], param: str, code: str | None) -> None:
    assert refused(Bench(), PATH, body) == (400, param, code)


def test_models_that_have_none() -> None:
    assert refused(Bench(), PATH, {"input": "x", "model": "other"}) == (404, "model", "model_not_found")
    without = Bench(info=engine_info(supported=("temperature",)))
    assert refused(without, PATH, {"input": "x"}) == (400, "model", "unsupported_endpoint")
    bench = Bench()
    bench.prompts.result = PromptResult(error="no", param="prompts")
    assert refused(bench, PATH, {"input": "x"}) == (400, "input", None)


@pytest.mark.parametrize(
    ("reason", "more", "status", "param"),
    [
        ("error", {}, 500, None),
        ("error", {"invalid": True, "error": "no adapter"}, 400, None),
        ("cancelled", {}, 503, None),
        ("stop", {}, 500, None),
        # Of another size than it was asked for.
        ("stop", {"embedding": [0.0]}, 400, "dimensions"),
    ],
)
def test_one_failure_ends_the_whole_request(reason: Any, more: dict[str, Any], status: int, param: str | None) -> None:
    bench = Bench()

    def feed() -> None:
        bench.engine.deliver(2, [], "stop", embedding=VECTOR)
        bench.engine.deliver(1, [], reason, **more)
        # Too late to change anything.
        bench.engine.deliver(3, [], "error")

    answered = asked(bench, PATH, {"input": ["x", "y", "z", "w"], "dimensions": 3}, feed)
    assert (answered.status, answered.json()["error"]["param"]) == (status, param)
    assert [getattr(record.outcome, "status", None) for record in bench.records] == [status]
    # The other is not worked on any more.
    assert bench.engine.cancelled == [bench.engine.requests[0].request_id]


async def test_a_client_that_has_gone_stops_the_engines_work() -> None:
    bench = Bench()
    await given_up(application(bench), bench.engine, PATH, {"input": "x"})
    assert [record.outcome for record in bench.records] == ["cancelled"]


async def test_a_full_server_takes_none() -> None:
    bench = Bench(max_concurrent_requests=1)
    app = application(bench)
    task = asyncio.ensure_future(ask(app, "POST", PATH, {"input": "x"}))
    await until(lambda: bench.engine.requests)
    assert (await ask(app, "POST", PATH, {"input": "x"})).status == 429
    bench.engine.deliver(0, [], "stop", embedding=VECTOR)
    assert (await task).status == 200


async def test_the_engine_has_some_inputs_at_a_time_and_the_batch_has_room_for_others() -> None:
    bench = Bench(engine_info(max_batch_size=1))
    app = application(bench)

    async def begin(given_input: Any) -> asyncio.Future[Answered]:
        before = len(bench.engine.requests)
        task = asyncio.ensure_future(ask(app, "POST", PATH, {"input": given_input}))
        await until(lambda: len(bench.engine.requests) > before)
        return task

    task, other = await begin([[1]] * 300), await begin("x")
    first = len(bench.engine.requests)
    assert first < 150
    for at in range(300):
        bench.engine.deliver(at + (at >= first - 1), [], "stop", embedding=[1.0])
    assert len((await asyncio.wait_for(task, WAIT_S)).json()["data"]) == 300
    bench.engine.deliver(first - 1, [], "stop", embedding=[1.0])
    await asyncio.wait_for(other, WAIT_S)
