"""What answers hold, whole and streamed, through the chat API."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.core.engine_types import Logprobs
from openai_bls.core.errors import (
    EngineError,
)
from openai_bls.output.detect import detect
from tests.prompt_logprobs import packed
from tests.unit.core_support import (
    EOS,
    Bench,
    chat,
    completion,
    token_ids,
    usage_body,
)
from tests.unit.pipeline.serving import CALL, TOOLS, begin, body_of, both_ways, stream, whole

THINKING = detect(None, tool_call_parser="hermes", reasoning_parser="think")

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
    prompt = packed(Logprobs([-1.0, -2.0], [[3], [4]], [[-0.1], [-0.2]]))
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
    more: dict[str, Any] = {"prompt_logprobs": packed(Logprobs([-1.0], [[]], [[]]))} if fields else {}
    request = completion(prompt="abcdef", echo=True, truncate_prompt_tokens=2, **fields)
    assert (await whole(bench, request, "X", **more))["choices"][0]["text"] == "efX"
    assert bench.engine.requests[0].prompt_token_ids == token_ids("ef")


async def test_the_prompt_has_no_part_in_which_answer_is_best() -> None:
    bench = Bench()
    task = await begin(bench, completion(prompt="ab", echo=True, logprobs=0, best_of=2))
    prompt = packed(Logprobs([-10.0], [[]], [[]]))
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


async def test_thoughts_that_nothing_opened_are_found_in_a_whole_answer() -> None:
    def message_of(body: Any) -> tuple[str | None, str | None]:
        message = body["choices"][0]["message"]
        return message.get("reasoning"), message["content"]

    bench = Bench(formats=THINKING)
    text = ("hm\n", "</think>", "\n\nyes")
    assert message_of(await whole(bench, chat(), *text)) == ("hm", "yes")
    # The prompt has closed them, or a grammar allows none that are not opened.
    closed = chat(messages=[{"role": "user", "content": "<think>\n\n</think>\n"}])
    assert message_of(await whole(bench, closed, *text)) == (None, "".join(text))
    assert message_of(await whole(bench, chat(guided_regex="h.*"), *text)) == (None, "".join(text))
    # A stream has sent them.
    sink = await stream(bench, chat(stream=True))
    for piece in text:
        bench.engine.deliver(len(bench.engine.requests) - 1, piece)
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in sink.chunks) == "".join(text)


async def test_thoughts_of_a_form_that_begins_with_them_are_streamed() -> None:
    bench = Bench(formats=detect(None, "none", "deepseek_r1"))
    sink = await stream(bench, chat(stream=True))
    for piece in ("hm\n", "</think>", "\n\nyes"):
        bench.engine.deliver(0, piece)
    deltas = [c["choices"][0]["delta"] for c in sink.chunks]
    assert [delta.get("reasoning") or delta.get("content") for delta in deltas[1:]] == ["hm", "yes"]


async def test_a_call_ends_thoughts_that_are_open() -> None:
    bench = Bench(formats=THINKING)
    request = chat(tools=TOOLS, messages=[{"role": "user", "content": "<think>"}])
    choice = (await whole(bench, request, "hm", CALL, "\n</think>\n", reason="stop"))["choices"][0]
    assert (choice["message"]["reasoning"], choice["message"]["content"]) == ("hm", None)
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}
    # Without tools there are no calls.
    request = chat(messages=[{"role": "user", "content": "<think>"}])
    message = (await whole(bench, request, "hm", CALL, "</think>yes"))["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == (f"hm{CALL}", "yes")


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
