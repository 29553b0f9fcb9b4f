"""Requests from their admission to their end, through the chat API."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from openai_bls.core.engine_types import PromptResult, SamplingParams
from openai_bls.core.errors import (
    ApiError,
    ContextLengthError,
    EngineError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    RateLimitError,
    RequestDeadlineError,
    UnsupportedByModelError,
)
from openai_bls.core.request import Deadline
from openai_bls.pipeline.admission.key_budgets import KeyBudgets
from openai_bls.pipeline.service import within
from tests.unit.core_support import (
    EOS,
    VOCAB_SIZE,
    WAIT_S,
    Bench,
    FakeSink,
    chat,
    completion,
    engine_info,
    request_context,
    token_ids,
    usage_body,
)
from tests.unit.pipeline.serving import answered, begin, body_of, both_ways, refused, stream, streamed, whole


async def test_a_whole_answer() -> None:
    bench = Bench()
    task = await begin(bench, chat())
    assert bench.service.in_progress == 1
    bench.engine.deliver(0, "hé")
    bench.engine.deliver(0, "y", "stop", stop_token_id=EOS)
    body = body_of(await task)
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == "tiny"
    assert body["choices"][0]["message"]["content"] == "héy"
    assert body["usage"] == usage_body(2, 5)
    assert bench.busy == [1, 0]
    assert bench.engine.cancelled == []


async def test_the_engines_request() -> None:
    bench = Bench(engine_info(sampling_defaults=SamplingParams(temperature=0.7, top_k=20, min_p=0.1)))
    await stream(
        bench, completion(prompt="abc", n=2, max_tokens=9, top_p=0.5, top_k=-1, seed=2**64 - 1, stop_token_ids=[3, 3])
    )
    first, second = bench.engine.requests
    assert first.prompt_token_ids == second.prompt_token_ids == token_ids("abc")
    assert first.max_tokens == 9
    assert first.stop_token_ids == (3, EOS)
    assert first.sampling == SamplingParams(temperature=0.7, top_p=0.5, top_k=0, min_p=0.1, seed=2**64 - 1)
    # Every choice has a seed of its own.
    assert second.sampling.seed == 0
    assert first.request_id != second.request_id


async def test_another_engine_after_a_reload() -> None:
    bench = Bench()
    before = bench.model.fingerprint
    bench.model.use_engine(engine_info(model_name="new", max_model_len=30, eos_token_ids=(9,)))
    assert bench.service.models.names == ["new", "openai_bls"]
    assert bench.model.fingerprint != before
    with pytest.raises(ModelNotFoundError):
        bench.service.models.card("tiny")
    await stream(bench, chat())
    assert bench.engine.requests[0].max_tokens == 28
    assert bench.engine.requests[0].stop_token_ids == (9,)


async def test_max_tokens_default_to_what_has_room_and_eos_may_be_ignored() -> None:
    bench = Bench(engine_info(max_model_len=50))
    await stream(bench, chat(ignore_eos=True))
    assert bench.engine.requests[0].max_tokens == 48
    assert bench.engine.requests[0].stop_token_ids == ()
    await stream(bench, completion())
    assert bench.engine.requests[1].max_tokens == 16


async def test_prompts_times_n_in_order() -> None:
    bench = Bench()
    task = await begin(bench, completion(prompt=["a", "bc"], n=2))
    assert [r.prompt_token_ids for r in bench.engine.requests] == [token_ids(p) for p in ("a", "a", "bc", "bc")]
    for at in (2, 0, 3, 1):
        bench.engine.deliver(at, str(at), "length")
    body = body_of(await task)
    assert [(c["index"], c["text"]) for c in body["choices"]] == [(i, str(i)) for i in range(4)]
    # A prompt counts once.
    assert body["usage"] == usage_body(3, 4)


async def test_echo() -> None:
    def feed(bench: Bench) -> None:
        for at in range(4):
            bench.engine.deliver(at, "!", "length")

    body, sink = await both_ways(partial(completion, prompt=["aé", "b"], n=2, echo=True), feed)
    texts = [""] * 4
    for chunk in sink.chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == [choice["text"] for choice in body["choices"]] == ["aé!", "aé!", "b!", "b!"]


async def test_echo_of_token_ids() -> None:
    bench = Bench()
    body = await whole(bench, completion(prompt=[*token_ids("é"), EOS], echo=True), "!")
    assert body["choices"][0]["text"] == "é<|im_end|>!"
    assert bench.prompts.requests == []


# --- refusals ---


async def test_an_unknown_model() -> None:
    bench = Bench(model_aliases="gpt-4, tiny")
    error = await refused(bench, chat(model="gpt-5"))
    assert isinstance(error, ModelNotFoundError)
    assert error.param == "model"
    assert bench.service.models.names == ["tiny", "gpt-4"]
    await stream(bench, chat(model="gpt-4"))
    assert bench.service.models.card("gpt-4")["id"] == "gpt-4"
    with pytest.raises(ModelNotFoundError):
        bench.service.models.card("gpt-5")


@pytest.mark.parametrize("fields", [{"n": 5}, {"n": 2**31 - 1}, {"prompt": ["a"] * 3, "n": 2}])
async def test_too_many_choices_are_refused_before_anything_is_made_for_them(fields: dict[str, Any]) -> None:
    error = await refused(Bench(max_choices=4), completion(**fields))
    assert (error.status, error.param) == (400, "n")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"prompt": "x" * 50, "max_tokens": 1}, "context_length_exceeded"),
        ({"prompt": "x" * 51, "max_tokens": 0, "echo": True}, "context_length_exceeded"),
        ({"prompt": "x" * 50}, "context_length_exceeded"),
        ({"prompt": ["x", "y" * 60], "max_tokens": 1}, "context_length_exceeded"),
        ({"prompt": ""}, None),
        ({"prompt": [[1], []]}, None),
        ({"prompt": [VOCAB_SIZE]}, None),
        ({"prompt": [[1], [2**31 - 1]]}, None),
    ],
)
async def test_bad_prompts(fields: dict[str, Any], code: str | None) -> None:
    error = await refused(Bench(engine_info(max_model_len=50)), completion(**fields))
    several = isinstance(fields["prompt"], list) and len(fields["prompt"]) > 1
    assert (error.status, error.param, error.code) == (400, "prompt[1]" if several else "prompt", code)


async def test_a_prompt_that_just_fits() -> None:
    bench = Bench(engine_info(max_model_len=50))
    await stream(bench, completion(prompt="x" * 30, max_tokens=20))
    await stream(bench, chat(messages=[{"role": "user", "content": "x" * 49}]))
    assert bench.engine.requests[1].max_tokens == 1
    sink = FakeSink()
    with pytest.raises(InvalidRequestError) as info:
        await streamed(bench.service, request_context(), chat(messages=[{"role": "user", "content": "x" * 50}]), sink)
    assert info.value.param == "messages"
    assert isinstance(info.value, ContextLengthError)
    assert (info.value.prompt_tokens, info.value.max_model_len) == (50, 50)


@pytest.mark.parametrize(
    ("fields", "tokens", "least"),
    [
        ({"max_tokens": 21}, 20, 0),
        ({"max_tokens": 2**31 - 1}, 20, 0),
        ({"max_tokens": 2**31 - 1, "min_tokens": 30}, 20, 20),
        ({"max_tokens": 19, "min_tokens": 3}, 19, 3),
        ({}, 16, 0),
        ({"max_tokens": 0, "echo": True}, 0, 0),
    ],
)
async def test_max_tokens_is_an_upper_bound(fields: dict[str, Any], tokens: int, least: int) -> None:
    bench = Bench(engine_info(max_model_len=50))
    request = completion(prompt="x" * 30, **fields)
    await stream(bench, request)
    sent = bench.engine.requests[0]
    assert (sent.max_tokens, sent.min_tokens) == (tokens, least)
    assert request.max_tokens == fields.get("max_tokens")


async def test_each_prompt_has_its_own_room_and_a_key_pays_for_no_more() -> None:
    bench = Bench(engine_info(max_model_len=50))
    await stream(bench, completion(prompt=["x" * 10, "y" * 45], max_tokens=1000))
    assert [sent.max_tokens for sent in bench.engine.requests] == [40, 5]


@pytest.mark.parametrize(
    ("result", "kind", "param"),
    [
        (PromptResult(error="bad", param="messages"), InvalidRequestError, "messages"),
        (PromptResult(error="bad", code="x", unsupported=True), UnsupportedByModelError, None),
        (EngineError("preprocessing cannot be reached"), EngineError, None),
    ],
)
async def test_preprocessing_may_fail(result: Any, kind: type[ApiError], param: str | None) -> None:
    bench = Bench()
    bench.prompts.result = result
    error = await refused(bench, chat())
    assert type(error) is kind
    assert error.param == param
    assert bench.busy == [1, 0, 1, 0]


async def test_a_budget_pays_for_what_was_used(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("alice: k tokens_per_minute=100\n")
    bench = Bench(api_keys_file=str(tmp_path / "keys"))
    budgets = bench.service.budgets = KeyBudgets(bench.service.api_keys.limits, clock=lambda: 0.0)
    for result, left in ((RuntimeError("bug"), "100"), (None, "96")):
        bench.prompts.result = result
        context = request_context(key="alice")
        answer = asyncio.ensure_future(answered(bench.service, context, chat(max_tokens=50)))
        while not (answer.done() or bench.engine.requests):
            await asyncio.sleep(0)
        if result is None:
            assert budgets.headers("alice")["x-ratelimit-remaining-tokens"] == "48"
            bench.engine.deliver(0, "ab", "stop")
        await asyncio.gather(answer, return_exceptions=True)
        assert answer.exception() is result
        assert budgets.headers("alice")["x-ratelimit-remaining-tokens"] == left
        assert bench.service.in_progress == 0


async def test_admission() -> None:
    bench = Bench(max_concurrent_requests=2)
    await stream(bench, chat())
    # A request counts from its beginning, also while it is prepared.
    bench.prompts.hold = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(answered(bench.service, request_context(), chat()))
    await asyncio.sleep(0)
    with pytest.raises(RateLimitError) as info:
        await answered(bench.service, request_context(), chat())
    assert info.value.reason == "in_progress"
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert bench.service.in_progress == 1
    bench.prompts.hold = None
    await stream(bench, chat())
    assert bench.service.in_progress == 2


async def test_a_key_s_requests_in_progress_leave_room_for_another_s(tmp_path: Path) -> None:
    """Those that wait for a prompt, a grammar or an image, too: no queue of the engine's has them yet."""
    (tmp_path / "keys").write_text("alice: a\nbob: b\n")
    bench = Bench(max_concurrent_requests=8, api_keys_file=str(tmp_path / "keys"))
    bench.prompts.hold = asyncio.get_running_loop().create_future()

    async def begun(key: str) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(answered(bench.service, request_context(key=key), chat()))
        await asyncio.sleep(0)
        return task

    hers = [await begun("alice") for _ in range(5)]
    assert [task.done() for task in hers] == [False] * 4 + [True]
    error = hers[4].exception()
    assert isinstance(error, RateLimitError)
    assert error.reason == "in_progress"
    his = [await begun("bob") for _ in range(3)]
    assert [task.done() for task in his] == [False, False, True]
    for task in (*hers, *his):
        task.cancel()
    await asyncio.gather(*hers, *his, return_exceptions=True)
    # What one gives back the other may have.
    bench.prompts.hold = asyncio.get_running_loop().create_future()
    his = [await begun("bob") for _ in range(5)]
    assert [task.done() for task in his] == [False] * 4 + [True]
    for task in his:
        task.cancel()
    await asyncio.gather(*his, return_exceptions=True)
    assert bench.service.in_progress == 0


async def test_draining_takes_no_more_and_ends_what_runs() -> None:
    bench = Bench()
    sink = await stream(bench, chat())
    bench.service.draining = True
    with pytest.raises(OverloadedError):
        await answered(bench.service, request_context(), chat())
    bench.engine.deliver(0, "a", "length")
    assert sink.ends == 1
    assert bench.service.in_progress == 0


# --- ends ---


async def test_cancelling_an_answer_cancels_the_generation() -> None:
    bench = Bench()
    task = await begin(bench, chat(n=2))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert bench.engine.cancelled == [request.request_id for request in bench.engine.requests]
    assert bench.service.in_progress == 0


async def test_a_sink_that_raises_at_the_beginning_leaves_no_count_behind() -> None:
    class Broken(FakeSink):
        def write(self, chunk: bytes) -> None:
            raise RuntimeError("gone")

    bench = Bench()
    with pytest.raises(RuntimeError):
        await streamed(bench.service, request_context(), chat(stream=True), Broken(opens_at_once=True))
    assert bench.service.in_progress == 0
    assert bench.engine.listeners == {}


# --- the engine's part in the answer ---


async def test_cached_tokens_count_once_a_prompt() -> None:
    bench = Bench()
    task = await begin(bench, completion(prompt=["abcd", "xy"], n=2))
    for at in range(4):
        bench.engine.deliver(at, "z", cached_tokens=3 if at < 2 else 0)
        bench.engine.deliver(at, "", "length")
    assert body_of(await task)["usage"] == usage_body(6, 4, cached=3)


async def test_records_of_what_was_answered() -> None:
    bench = Bench()
    await whole(bench, chat(), "ab")
    (record,) = bench.records
    assert (record.endpoint, record.model, record.outcome) == ("chat.completions", "tiny", "done")
    assert record.finish_reasons == ["length"]
    assert record.usage.completion_tokens == 2
    assert record.first_token_at is not None
    assert record.began_at <= record.first_token_at <= record.ended_at
    task = await begin(bench, chat())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (bench.records[1].outcome, bench.records[1].first_token_at) == ("cancelled", None)
    task = await begin(bench, chat())
    bench.engine.deliver(2, "", "error", error="broken")
    with pytest.raises(EngineError) as info:
        await task
    assert bench.records[2].outcome is info.value


async def test_bad_words_and_cut_prompts() -> None:
    bench = Bench()
    bench.prompts.result = PromptResult([[1, 2, 3]], [[7, 8]])
    await stream(bench, chat(bad_words=["x"], truncate_prompt_tokens=2))
    assert bench.prompts.requests[0].bad_words == ["x"]
    assert bench.engine.requests[0].bad_words == ((7, 8),)
    assert bench.engine.requests[0].prompt_token_ids == [2, 3]
    await stream(bench, completion(prompt=[[4], [5]], bad_words=["x"]))
    assert bench.prompts.requests[1].prompts == []
    assert [r.prompt_token_ids for r in bench.engine.requests[1:]] == [[4], [5]]


async def test_templates_of_requests_need_the_operators_word() -> None:
    assert (await refused(Bench(), chat(chat_template="{{ messages }}"))).param == "chat_template"
    bench = Bench(trust_chat_template=True)
    await stream(bench, chat(chat_template="{{ messages }}"))
    assert bench.prompts.requests[0].chat_template == "{{ messages }}"


async def test_adapters_are_models() -> None:
    bench = Bench(engine_info(lora_names=("poet",)))
    assert (await whole(bench, chat(model="poet"), "x"))["model"] == "poet"
    assert bench.engine.requests[0].lora_name == "poet"
    await stream(bench, chat())
    assert bench.engine.requests[1].lora_name is None


async def test_queue_time_begins_before_the_engine_has_a_request() -> None:
    # One place in the batch, and one sequence ahead.
    bench = Bench(engine_info(max_batch_size=1))
    first, second = await begin(bench, chat()), await begin(bench, chat())
    third, fourth = (asyncio.ensure_future(answered(bench.service, request_context(), chat())) for _ in range(2))
    admission = bench.service.admission(next(iter(bench.service.models)))
    while admission.waiting < 2:
        await asyncio.sleep(0)
    fourth.cancel()
    await asyncio.wait([fourth])
    bench.engine.deliver(0, "x", "length", queue_s=0.0)
    bench.engine.deliver(1, "x", "length", queue_s=5.0)
    while len(bench.engine.requests) < 3:
        await asyncio.sleep(0)
    bench.engine.deliver(2, "x", "length", queue_s=5.0)
    await asyncio.gather(first, second, third)
    started, ahead, waited = (record for record in bench.records if record.outcome == "done")
    (gone,) = (record for record in bench.records if record.outcome == "cancelled")
    for record, engine_s in ((started, 0.0), (ahead, 5.0), (waited, 5.0)):
        assert record.queue_s is not None
        assert record.queued_at is not None
        assert record.submitted_at is not None
        assert record.queue_s == pytest.approx(record.submitted_at - record.queued_at + engine_s)
    assert waited.queued_at is not None
    assert waited.submitted_at is not None
    assert waited.queued_at < started.ended_at <= waited.submitted_at
    assert gone.submitted_at is None
    assert gone.queued_at is not None
    assert gone.queue_s is not None
    assert 0 < gone.queue_s <= gone.ended_at - gone.queued_at


async def test_a_result_that_comes_as_its_request_is_cancelled() -> None:
    """The request ends all the same: its client has gone."""
    result = asyncio.get_running_loop().create_future()
    request = asyncio.ensure_future(within(Deadline(time.monotonic() + WAIT_S, WAIT_S), result))
    await asyncio.sleep(0)
    result.set_result("prepared")
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request


async def test_a_result_that_comes_at_the_deadline() -> None:
    result = asyncio.get_running_loop().create_future()
    result.set_result("prepared")
    assert await within(Deadline(time.monotonic(), 1), result) == "prepared"


async def test_work_that_misses_its_deadline_is_cancelled() -> None:
    never = asyncio.get_running_loop().create_future()
    with pytest.raises(RequestDeadlineError):
        await within(Deadline(time.monotonic(), 1), never)
    assert never.cancelled()
