from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.api.chat import serving
from openai_bls.api.common.encoding import encode
from openai_bls.core.engine_types import Logprobs, PromptResult, SamplingParams
from openai_bls.core.errors import (
    ApiError,
    EngineError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    RateLimitError,
    RequestDeadlineError,
)
from openai_bls.core.request import Deadline, ValidRequest
from openai_bls.output.detect import detect
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

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "f"}}]


async def begin(bench: Bench, request: ValidRequest) -> asyncio.Task[Any]:
    """A whole answer whose sequences have reached the engine."""
    before = len(bench.engine.requests)
    task = asyncio.ensure_future(serving.answer(bench.service, request_context(), request))
    while len(bench.engine.requests) == before and not task.done():
        await asyncio.sleep(0)
    return task


async def whole(bench: Bench, request: ValidRequest, *pieces: Any, reason: str = "length", **last: Any) -> Any:
    """The body of an answer made of pieces, a delta each; `last` comes with the last of them."""
    before = len(bench.engine.requests)
    task = await begin(bench, request)
    for piece in pieces[:-1]:
        bench.engine.deliver(before, piece)
    bench.engine.deliver(before, pieces[-1], reason, stop_token_id=EOS if reason == "stop" else None, **last)
    return body_of(await task)


async def stream(bench: Bench, request: ValidRequest, *, open_at_once: bool = False) -> FakeSink:
    sink = FakeSink(opens_at_once=open_at_once)
    await serving.stream(bench.service, request_context(), request, sink)
    return sink


async def refused(bench: Bench, request: ValidRequest) -> ApiError:
    """The same error streamed and not; nothing stays behind."""
    with pytest.raises(ApiError) as caught:
        await serving.answer(bench.service, request_context(), request)
    sink = FakeSink(opens_at_once=True)
    with pytest.raises(ApiError) as streamed:
        await serving.stream(bench.service, request_context(), request, sink)
    assert sink.raw == []
    assert caught.value.body() == streamed.value.body()
    assert bench.service.in_progress == 0
    assert bench.engine.requests == []
    return caught.value


def body_of(answer: Any) -> Any:
    return json.loads(encode(answer))


async def both_ways(
    make: Callable[..., ValidRequest], feed: Callable[[Bench], None], **options: Any
) -> tuple[Any, FakeSink]:
    """The body of a whole answer, and the sink of a stream that the engine feeds alike."""
    bench = Bench(**options)
    task = await begin(bench, make())
    feed(bench)
    body = body_of(await task)
    bench = Bench(**options)
    sink = await stream(bench, make(stream=True))
    feed(bench)
    assert sink.ends == 1
    return body, sink


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
        ({"prompt": "x" * 30, "max_tokens": 21}, "context_length_exceeded"),
        ({"prompt": "x" * 51, "max_tokens": 1}, "context_length_exceeded"),
        ({"prompt": "x", "max_tokens": 2**31 - 1}, "context_length_exceeded"),
        ({"prompt": ["x", "y" * 60], "max_tokens": 1}, "context_length_exceeded"),
        ({"prompt": ""}, None),
        ({"prompt": [[1], []]}, None),
        ({"prompt": [VOCAB_SIZE]}, None),
        ({"prompt": [[1], [2**31 - 1]]}, None),
    ],
)
async def test_bad_prompts(fields: dict[str, Any], code: str | None) -> None:
    error = await refused(Bench(engine_info(max_model_len=50)), completion(**fields))
    assert (error.status, error.param, error.code) == (400, "prompt", code)


async def test_a_prompt_that_just_fits() -> None:
    bench = Bench(engine_info(max_model_len=50))
    await stream(bench, completion(prompt="x" * 30, max_tokens=20))
    await stream(bench, chat(messages=[{"role": "user", "content": "x" * 49}]))
    assert bench.engine.requests[1].max_tokens == 1
    sink = FakeSink()
    with pytest.raises(InvalidRequestError) as info:
        await serving.stream(
            bench.service, request_context(), chat(messages=[{"role": "user", "content": "x" * 50}]), sink
        )
    assert info.value.param == "messages"


@pytest.mark.parametrize(
    ("result", "kind", "param"),
    [
        (PromptResult(error="bad", param="messages"), InvalidRequestError, "messages"),
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
        answer = asyncio.ensure_future(serving.answer(bench.service, context, chat(max_tokens=50)))
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
    waiting = asyncio.ensure_future(serving.answer(bench.service, request_context(), chat()))
    await asyncio.sleep(0)
    with pytest.raises(RateLimitError) as info:
        await serving.answer(bench.service, request_context(), chat())
    assert info.value.reason == "in_progress"
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert bench.service.in_progress == 1
    bench.prompts.hold = None
    await stream(bench, chat())
    assert bench.service.in_progress == 2


async def test_draining_takes_no_more_and_ends_what_runs() -> None:
    bench = Bench()
    sink = await stream(bench, chat())
    bench.service.draining = True
    with pytest.raises(OverloadedError):
        await serving.answer(bench.service, request_context(), chat())
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
        await serving.stream(bench.service, request_context(), chat(stream=True), Broken(opens_at_once=True))
    assert bench.service.in_progress == 0
    assert bench.engine.listeners == {}


# --- streams ---


async def test_the_order_of_a_stream() -> None:
    bench = Bench()
    request = chat(n=2, stream=True, stream_options={"include_usage": True})
    sink = await stream(bench, request, open_at_once=True)
    # Roles at once.
    assert [c["choices"][0]["index"] for c in sink.chunks] == [0, 1]
    bench.engine.deliver(1, "b", "length")
    bench.engine.deliver(0, "a")
    bench.engine.deliver(0, "a", "stop", stop_token_id=EOS)
    chunks = sink.chunks
    assert len({(c["id"], c["created"], c["model"], c["system_fingerprint"]) for c in chunks}) == 1
    for index, texts, reason in ((0, ["a", "a"], "stop"), (1, ["b"], "length")):
        own = [c["choices"][0] for c in chunks if c["choices"] and c["choices"][0]["index"] == index]
        assert [c["delta"] for c in own] == [
            {"role": "assistant", "content": ""},
            *({"content": text} for text in texts),
            {},
        ]
        assert [c["finish_reason"] for c in own] == [None] * (len(own) - 1) + [reason]
    assert [c["usage"] for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == usage_body(2, 4)
    assert sink.ends == 1


async def test_usage_with_every_chunk() -> None:
    bench = Bench()
    options = {"include_usage": True, "continuous_usage_stats": True}
    sink = await stream(bench, chat(stream=True, stream_options=options))
    bench.engine.deliver(0, "ab")
    bench.engine.deliver(0, "c", "length")
    counts = [c["usage"]["completion_tokens"] for c in sink.chunks]
    # The chunk with the role has no token yet.
    assert counts == [0, 2, 3, 3, 3]
    assert {c["usage"]["prompt_tokens"] for c in sink.chunks} == {2}


PIECES = st.sampled_from(["a", "b", "é", "中", "👍", " ", "\n", "<", CALL, "<tool_call>", "stop", "\0"])
CHOICE = st.tuples(
    st.lists(PIECES, max_size=6).map("".join),
    st.lists(st.integers(1, 7), min_size=1, max_size=10),
    st.sampled_from(["stop", "length"]),
)


@given(st.lists(CHOICE, min_size=1, max_size=3), st.booleans(), st.sampled_from([[], ["b", "中👍"]]), st.booleans())
@settings(deadline=None, max_examples=120)
def test_a_stream_adds_up_to_the_whole_answer(choices: list[Any], tools: bool, stop: list[str], is_chat: bool) -> None:
    fields: dict[str, Any] = {"n": len(choices), "stop": stop, "skip_special_tokens": True}
    if is_chat and tools:
        fields["tools"] = TOOLS
    make = chat if is_chat else completion
    usage = {"stream_options": {"include_usage": True}}

    def feed(bench: Bench) -> None:
        rests = [token_ids(text) for text, _, _ in choices]
        sizes = [itertools.cycle(cuts) for _, cuts, _ in choices]
        while any(rests):
            for at, rest in enumerate(rests):
                size = next(sizes[at])
                bench.engine.deliver(at, rest[:size])
                rests[at] = rest[size:]
        for at, (_, _, reason) in enumerate(choices):
            token = EOS if reason == "stop" else None
            bench.engine.deliver(at, [], reason, stop_token_id=token)

    async def test() -> None:
        answer, sink = await both_ways(lambda **more: make(**fields, **more, **(usage if more else {})), feed)
        assert sink.chunks[-1]["usage"] == answer["usage"]
        for choice in answer["choices"]:
            own = [c["choices"][0] for c in sink.chunks[:-1] if c["choices"][0]["index"] == choice["index"]]
            assert own[-1]["finish_reason"] == choice["finish_reason"]
            assert all(c["finish_reason"] is None for c in own[:-1])
            if not is_chat:
                assert "".join(c["text"] for c in own) == choice["text"]
                continue
            deltas = [c["delta"] for c in own]
            assert [d.get("role") for d in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
            assert deltas[-1] == {}
            message = choice["message"]
            assert "".join(d.get("content", "") for d in deltas) == (message["content"] or "")
            calls: list[dict[str, str]] = []
            for delta in deltas:
                for call in delta.get("tool_calls", ()):
                    if "id" in call:
                        assert call["index"] == len(calls)
                        calls.append({"name": call["function"]["name"], "arguments": ""})
                    calls[call["index"]]["arguments"] += call["function"]["arguments"]
            assert calls == [call["function"] for call in message.get("tool_calls", ())]

    asyncio.run(test())


THINKING = detect(None, tool_call_parser="hermes", reasoning_parser="think")

# --- log-probabilities ---


async def test_log_probabilities_of_a_chat() -> None:
    def feed(bench: Bench) -> None:
        assert bench.engine.requests[0].logprobs == 1
        first, second = token_ids("é")
        bench.engine.deliver(0, [first])
        bench.engine.deliver(0, [second, *token_ids("a!")])

    body, sink = await both_ways(partial(chat, logprobs=True, top_logprobs=1, stop=["!"]), feed)
    content = body["choices"][0]["logprobs"]["content"]
    parts = [c["choices"][0]["logprobs"] for c in sink.chunks if c["choices"][0]["logprobs"]]
    assert [entry for part in parts for entry in part["content"]] == content
    # Not of the stop string.
    assert [entry["bytes"] for entry in content] == [[0xC3], [0xA9], [97]]
    assert content[2] == {
        "token": "a",
        "logprob": -0.5,
        "bytes": [97],
        "top_logprobs": [{"token": "b", "logprob": -0.1, "bytes": [98]}],
    }


async def test_log_probabilities_of_an_echoed_prompt() -> None:
    bench = Bench()
    prompt = Logprobs([-1.0, -2.0], [[3], [4]], [[-0.1], [-0.2]])
    request = completion(prompt="aé", echo=True, logprobs=1, max_tokens=2)
    choice = (await whole(bench, request, "xy", prompt_logprobs=prompt))["choices"][0]
    assert bench.engine.requests[0].prompt_logprobs == 1
    assert choice["text"] == "aéxy"
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == ["a", "bytes:\\xc3", "bytes:\\xa9", "x", "y"]
    assert logprobs["token_logprobs"] == [None, -1.0, -2.0, -0.5, -0.5]
    assert logprobs["text_offset"] == [0, 1, 1, 2, 3]
    assert logprobs["top_logprobs"][0] is None


@pytest.mark.parametrize("fields", [{}, {"logprobs": 0}])
async def test_an_echo_of_what_is_left_of_a_prompt(fields: dict[str, Any]) -> None:
    bench = Bench()
    more: dict[str, Any] = {"prompt_logprobs": Logprobs([-1.0], [[]], [[]])} if fields else {}
    request = completion(prompt="abcdef", echo=True, truncate_prompt_tokens=2, **fields)
    assert (await whole(bench, request, "X", **more))["choices"][0]["text"] == "efX"
    assert bench.engine.requests[0].prompt_token_ids == token_ids("ef")


async def test_the_prompt_has_no_part_in_which_answer_is_best() -> None:
    bench = Bench()
    task = await begin(bench, completion(prompt="ab", echo=True, logprobs=0, best_of=2))
    prompt = Logprobs([-10.0], [[]], [[]])
    for at, values in enumerate(([-1.0], [-1.5, -1.5, -1.5])):
        logprobs = Logprobs(values, [[]] * len(values), [[]] * len(values))
        bench.engine.deliver(at, str(at) * len(values), "length", logprobs=logprobs, prompt_logprobs=prompt)
    assert body_of(await task)["choices"][0]["text"] == "ab0"


async def test_thoughts_that_are_not_told_have_no_log_probabilities() -> None:
    bench = Bench(formats=THINKING)
    request = chat(messages=[{"role": "user", "content": "<think>"}], include_reasoning=False, logprobs=True)
    choice = (await whole(bench, request, "hmm", "</think>", "yes", ""))["choices"][0]
    assert choice["message"]["content"] == "yes"
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == list("yes")


async def test_an_engine_that_keeps_log_probabilities_back_fails_the_request() -> None:
    bench = Bench()
    task = await begin(bench, completion(prompt="ab", echo=True, logprobs=0))
    bench.engine.deliver(0, "x")
    with pytest.raises(EngineError):
        await task


async def test_the_likeliest_of_several() -> None:
    bench = Bench()
    task = await begin(bench, completion(prompt=["a", "b"], n=1, best_of=3))
    assert [r.logprobs for r in bench.engine.requests] == [0] * 6
    for at, value in enumerate([-3.0, -1.0, -2.0, -1.0, -5.0, -0.5]):
        bench.engine.deliver(at, str(at), "length", logprobs=Logprobs([value], [[]], [[]]))
    body = body_of(await task)
    assert [(c["index"], c["text"], c["logprobs"]) for c in body["choices"]] == [(0, "1", None), (1, "5", None)]
    # All that was generated counts.
    assert body["usage"] == usage_body(2, 6)


# --- reasoning and tools ---


@pytest.mark.parametrize("opened", [False, True])
async def test_what_the_model_thinks_is_told_apart_and_counted(opened: bool) -> None:
    def feed(bench: Bench) -> None:
        for piece in ("" if opened else "<think>", "hm", "m", "</think>", "\n\nyes", CALL):
            bench.engine.deliver(0, piece)
        bench.engine.deliver(0, "", "stop", stop_token_id=EOS)

    messages = [{"role": "user", "content": "hi<think>\n" if opened else "hi"}]
    body, sink = await both_ways(partial(chat, messages=messages, tools=TOOLS), feed, formats=THINKING)
    deltas = [c["choices"][0]["delta"] for c in sink.chunks]
    message = body["choices"][0]["message"]
    for name in ("reasoning_content", "reasoning"):
        assert message[name] == "".join(d.get(name, "") for d in deltas) == "hmm"
    assert message["content"] == "".join(d.get("content") or "" for d in deltas) == "yes"
    assert message["tool_calls"][0]["function"]["name"] == "f"
    assert body["choices"][0]["finish_reason"] == "tool_calls"
    # Of a token a byte: "hmm" and the marker that ends it.
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == len("hmm</think>")


@pytest.mark.parametrize(
    ("choice", "reason"), [("required", "tool_calls"), ({"type": "function", "function": {"name": "f"}}, "stop")]
)
async def test_forced_calls(choice: Any, reason: str) -> None:
    bench = Bench()
    body = (await whole(bench, chat(tools=TOOLS, tool_choice=choice), CALL, reason="stop"))["choices"][0]
    grammar = bench.engine.requests[0].grammar
    assert grammar is not None
    assert "<tool_call>" in grammar.text
    assert body["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert (body["message"]["content"], body["finish_reason"]) == (None, reason)


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
    third, fourth = (asyncio.ensure_future(serving.answer(bench.service, request_context(), chat())) for _ in range(2))
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
