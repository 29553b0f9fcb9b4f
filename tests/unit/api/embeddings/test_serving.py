from __future__ import annotations

import asyncio
import base64
import struct
from typing import Any

import msgspec
import pytest

from openai_bls.api.common.encoding import encode
from openai_bls.api.embeddings.schema import MAX_INPUTS
from openai_bls.api.embeddings.serving import embed
from openai_bls.core.engine_types import GenerationRequest, PromptRequest, PromptResult
from openai_bls.core.errors import ApiError, EngineError, InvalidRequestError, OverloadedError, RateLimitError
from tests.unit.core_support import VOCAB_SIZE, Bench, engine_info, request_context, token_ids

VECTOR = [0.6, -0.8, 1e-7]


async def begin(bench: Bench, body: dict[str, Any], count: int = 1) -> asyncio.Task[dict[str, Any]]:
    """A request whose `count` inputs are with the engine."""

    async def main() -> dict[str, Any]:
        answer: dict[str, Any] = msgspec.json.decode(
            encode(await embed(bench.service, request_context("embeddings"), body))
        )
        return answer

    before = len(bench.engine.requests)
    task = asyncio.create_task(main())
    while len(bench.engine.requests) < before + count:
        await asyncio.sleep(0)
        if task.done():
            task.result()
    return task


def refused(body: dict[str, Any], **options: Any) -> ApiError:
    bench = Bench(**options)
    with pytest.raises(ApiError) as caught:
        asyncio.run(embed(bench.service, request_context("embeddings"), body))
    assert (bench.service.in_progress, bench.engine.requests) == (0, [])
    return caught.value


async def test_an_answer(bench: Bench) -> None:
    task = await begin(bench, {"model": "openai_bls", "input": "hé", "user": "u"})
    assert bench.engine.requests == [
        GenerationRequest(request_id=1, prompt_token_ids=token_ids("hé"), max_tokens=0, pooling="last")
    ]
    assert bench.service.in_progress == 1
    bench.engine.deliver(0, [], "stop", embedding=VECTOR)
    assert await task == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": VECTOR}],
        "model": "openai_bls",
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }
    (record,) = bench.records
    assert (record.endpoint, record.outcome, record.usage.prompt_tokens) == ("embeddings", "done", 3)


async def test_base64_is_little_endian_float32(bench: Bench) -> None:
    task = await begin(bench, {"input": "x", "encoding_format": "base64", "dimensions": 3})
    bench.engine.deliver(0, [], "stop", embedding=VECTOR)
    answer = await task
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
    ],
)
async def test_the_four_forms_of_input(bench: Bench, given_input: Any, prompts: list[list[int]]) -> None:
    task = await begin(bench, {"input": given_input, "pooling": "mean"}, len(prompts))
    assert [request.prompt_token_ids for request in bench.engine.requests] == sorted(prompts, key=len)
    assert {request.pooling for request in bench.engine.requests} == {"mean"}
    for at in range(len(prompts)):
        bench.engine.deliver(at, [], "stop", embedding=[1.0])
    total = sum(map(len, prompts))
    assert (await task)["usage"] == {"prompt_tokens": total, "total_tokens": total}


async def test_answers_keep_the_inputs_order_whichever_comes_first(bench: Bench) -> None:
    task = await begin(bench, {"input": ["a", "b", "c"]}, 3)
    for at in (2, 0, 1):
        bench.engine.deliver(at, [], "stop", embedding=[float(at)])
    answer = await task
    assert [(item["index"], item["embedding"]) for item in answer["data"]] == [(0, [0.0]), (1, [1.0]), (2, [2.0])]


@pytest.mark.parametrize(("given_value", "meant"), [(None, True), (True, True), (False, False)])
async def test_special_tokens_are_added_unless_not_wanted(bench: Bench, given_value: bool | None, meant: bool) -> None:
    task = await begin(bench, {"input": ["x"], "add_special_tokens": given_value})
    assert bench.prompts.requests == [PromptRequest(prompts=["x"], add_special_tokens=meant, max_prompt_tokens=1000)]
    bench.engine.deliver(0, [], "stop", embedding=[1.0])
    await task


async def test_an_adapter_is_named_to_the_engine() -> None:
    bench = Bench(info=engine_info(lora_names=("poet",)))
    task = await begin(bench, {"input": "x", "model": "poet"})
    assert bench.engine.requests[0].lora_name == "poet"
    bench.engine.deliver(0, [], "stop", embedding=[1.0])
    assert (await task)["model"] == "poet"
    assert bench.records[0].model == "poet"
    assert bench.service.in_progress == 0


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "input", "missing_required_parameter"),
        ({"input": 1}, "input", None),
        ({"input": []}, "input", None),
        ({"input": ["a", 1]}, "input", None),
        ({"input": [[1], "a"]}, "input", None),
        ({"input": [[]]}, "input", None),
        ({"input": ""}, "input", None),
        ({"input": ["a", ""]}, "input", None),
        ({"input": [VOCAB_SIZE]}, "input", None),
        ({"input": [[1], [VOCAB_SIZE]]}, "input", None),
        ({"input": "x" * 1001}, "input", "context_length_exceeded"),
        ({"input": ["x", "x" * 1001]}, "input", "context_length_exceeded"),
        ({"input": ["x"] * (MAX_INPUTS + 1)}, "input", None),
        ({"input": "x", "encoding_format": "hex"}, "encoding_format", None),
        ({"input": "x", "dimensions": 0}, "dimensions", None),
        ({"input": "x", "pooling": "cls"}, "pooling", None),
        ({"input": "x", "normalize": True}, "normalize", "unknown_parameter"),
        ({"input": "x", "model": "other"}, "model", "model_not_found"),
    ],
)
def test_bad_bodies_are_refused_by_name(body: dict[str, Any], param: str, code: str | None) -> None:
    error = refused(body)
    assert isinstance(error, ApiError)
    assert (error.param, error.code) == (param, code)


async def test_the_longest_input_that_fits(bench: Bench) -> None:
    task = await begin(bench, {"input": "x" * 1000})
    bench.engine.deliver(0, [], "stop", embedding=[1.0])
    assert (await task)["usage"]["prompt_tokens"] == 1000


def test_an_engine_without_embeddings_says_so() -> None:
    error = refused({"input": "x"}, info=engine_info(supported=("temperature",)))
    assert (error.status, error.param, error.code) == (400, "model", "unsupported_endpoint")
    assert "has no embeddings" in error.message


async def test_other_dimensions_are_refused_with_the_models_size(bench: Bench) -> None:
    task = await begin(bench, {"input": ["x", "y"], "dimensions": 2}, 2)
    bench.engine.deliver(1, [], "stop", embedding=VECTOR)
    with pytest.raises(InvalidRequestError, match="have 3 and cannot be shortened") as caught:
        await task
    assert caught.value.param == "dimensions"
    # The other is not worked on any more.
    assert bench.engine.cancelled == [bench.engine.requests[0].request_id]


@pytest.mark.parametrize(
    ("reason", "more", "kind"),
    [
        ("error", {}, EngineError),
        ("error", {"invalid": True, "error": "no adapter"}, InvalidRequestError),
        ("cancelled", {}, OverloadedError),
        ("stop", {}, EngineError),
    ],
)
async def test_one_failure_ends_the_whole_request(
    bench: Bench, reason: Any, more: dict[str, Any], kind: type[ApiError]
) -> None:
    task = await begin(bench, {"input": ["x", "y", "z"]}, 3)
    bench.engine.deliver(2, [], "stop", embedding=VECTOR)
    bench.engine.deliver(1, [], reason, **more)
    bench.engine.deliver(0, [], "error")
    with pytest.raises(kind) as caught:
        await task
    assert [record.outcome for record in bench.records] == [caught.value]


async def test_a_client_that_has_gone_stops_the_engines_work(bench: Bench) -> None:
    task = await begin(bench, {"input": ["x", "y"]}, 2)
    bench.engine.deliver(0, [], "stop", embedding=VECTOR)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert bench.engine.cancelled == [bench.engine.requests[1].request_id]
    assert [record.outcome for record in bench.records] == ["cancelled"]


async def test_what_preprocessing_refuses(bench: Bench) -> None:
    bench.prompts.result = PromptResult(error="no", param="prompts")
    with pytest.raises(InvalidRequestError) as caught:
        await embed(bench.service, request_context("embeddings"), {"input": "x"})
    assert (caught.value.message, caught.value.param) == ("no", "input")


async def test_a_full_server_takes_none() -> None:
    bench = Bench(max_concurrent_requests=1)
    task = await begin(bench, {"input": "x"})
    with pytest.raises(RateLimitError):
        await embed(bench.service, request_context("embeddings"), {"input": "x"})
    bench.engine.deliver(0, [], "stop", embedding=VECTOR)
    await task
    assert bench.service.in_progress == 0


async def test_the_engine_has_some_inputs_at_a_time_and_the_batch_has_room_for_others() -> None:
    bench = Bench(engine_info(max_batch_size=1))
    task = await begin(bench, {"input": [[1]] * 300})
    other = await begin(bench, {"input": "x"})
    first = len(bench.engine.requests)
    assert first < 150
    for at in range(300):
        bench.engine.deliver(at + (at >= first - 1), [], "stop", embedding=[1.0])
    assert len((await task)["data"]) == 300
    bench.engine.deliver(first - 1, [], "stop", embedding=[1.0])
    await other
