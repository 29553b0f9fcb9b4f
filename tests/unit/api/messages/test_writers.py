"""Streams and whole answers, over a fake engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.api.common.encoding import encode
from openai_bls.api.messages.turns import tool_input
from openai_bls.output.detect import ModelFormats, detect
from tests.unit.api.http_support import asked
from tests.unit.api.messages.messages_support import WEATHER, body, events_of
from tests.unit.core_support import EOS, Answered, Bench, token_ids

THINKING = detect(None, tool_call_parser="hermes", reasoning_parser="think")
PLAIN = detect(None, tool_call_parser="hermes", reasoning_parser="none")
ARGUMENTS = '{"city": "Köln"}'
CALL = '<tool_call>\n{"name": "get_weather", "arguments": ' + ARGUMENTS + "}\n</tool_call>"


def answered(
    pieces: Sequence[str | list[int]],
    *,
    stream: bool = False,
    formats: ModelFormats = PLAIN,
    finish: str = "stop",
    cached_tokens: int = 0,
    **fields: Any,
) -> Answered:
    """The answer to a request for which the model writes `pieces`."""
    bench = Bench(formats=formats)

    def feed() -> None:
        for piece in pieces[:-1]:
            bench.engine.deliver(0, piece)
        stop_token_id = EOS if finish == "stop" else None
        bench.engine.deliver(0, pieces[-1], finish, stop_token_id=stop_token_id, cached_tokens=cached_tokens)

    result = asked(bench, "/v1/messages", body(**fields, stream=stream), feed)
    assert result.status == 200
    assert result.headers["request-id"].startswith("req_")
    return result


def answers(pieces: Sequence[str | list[int]], **options: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The events of a stream and the whole answer, of the same output of the model."""
    return events_of(answered(pieces, stream=True, **options)), answered(pieces, **options).json()


# Type of a delta → type of its block, and its field.
DELTAS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("thinking", "signature"),
    "input_json_delta": ("tool_use", "partial_json"),
}


def fold(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client makes of a stream, by the API's own rules; also whether the stream keeps them."""
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("message_start") == kinds.count("message_delta") == 1
    message: dict[str, Any] = events[0]["message"]
    assert message["content"] == []
    assert (message["stop_reason"], message["stop_sequence"]) == (None, None)
    inputs: list[str] = []
    opened = False
    for event in events[1:-2]:
        if event["type"] == "ping":
            continue
        if event["type"] == "content_block_start":
            assert not opened
            opened = True
            assert event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
            inputs.append("")
            continue
        assert opened
        assert event["index"] == len(message["content"]) - 1
        block = message["content"][-1]
        if event["type"] == "content_block_stop":
            opened = False
            if block["type"] == "tool_use":
                block["input"] = json.loads(encode(tool_input(inputs[-1])))
            continue
        assert event["type"] == "content_block_delta"
        delta = event["delta"]
        kind, name = DELTAS[delta["type"]]
        assert block["type"] == kind
        assert delta[name] or name == "signature"
        if kind == "tool_use":
            inputs[-1] += delta[name]
        else:
            block[name] += delta[name]
    assert not opened
    message |= events[-2]["delta"]
    message["usage"] = events[-2]["usage"]
    return message


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    """Ids are random."""
    assert message["id"].startswith("msg_")
    assert all(block["id"].startswith("toolu_") for block in message["content"] if block["type"] == "tool_use")
    blocks = [{**block, "id": ""} if "id" in block else block for block in message["content"]]
    return {**message, "id": "", "content": blocks}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def thinking(value: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": value, "signature": ""}


def tool_use(value: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": "", "name": "get_weather", "input": value}


KOELN = {"city": "Köln"}
WITH_TOOLS: dict[str, Any] = {"tools": [WEATHER]}


def test_every_event() -> None:
    events, _ = answers(["hé"], max_tokens=9)
    message_id = events[0]["message"]["id"]
    usage = {"input_tokens": 2, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    start = {
        "type": "message",
        "id": message_id,
        "role": "assistant",
        "model": "tiny",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**usage, "output_tokens": 0, "output_tokens_details": {"thinking_tokens": 0}},
    }
    assert events == [
        {"type": "message_start", "message": start},
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hé"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {**usage, "output_tokens": 4, "output_tokens_details": {"thinking_tokens": 0}},
        },
        {"type": "message_stop"},
    ]


def test_the_events_of_thinking_and_a_call() -> None:
    events, _ = answers(["<think>hm</think>\n\nOk." + CALL], formats=THINKING, **WITH_TOOLS)
    shape = [(e["type"], e.get("index"), e.get("delta", e.get("content_block", {})).get("type")) for e in events]
    assert shape == [
        ("message_start", None, None),
        ("ping", None, None),
        ("content_block_start", 0, "thinking"),
        ("content_block_delta", 0, "thinking_delta"),
        ("content_block_delta", 0, "signature_delta"),
        ("content_block_stop", 0, None),
        ("content_block_start", 1, "text"),
        ("content_block_delta", 1, "text_delta"),
        ("content_block_stop", 1, None),
        ("content_block_start", 2, "tool_use"),
        ("content_block_delta", 2, "input_json_delta"),
        ("content_block_stop", 2, None),
        ("message_delta", None, None),
        ("message_stop", None, None),
    ]
    assert events[9]["content_block"]["input"] == {}
    assert events[10]["delta"]["partial_json"] == ARGUMENTS


OUTPUTS: list[tuple[str, dict[str, Any], list[dict[str, Any]], str, str | None]] = [
    ("", {}, [], "end_turn", None),
    ("", {"finish": "length", "max_tokens": 0}, [], "max_tokens", None),
    ("hi", {}, [text("hi")], "end_turn", None),
    ("hi", {"finish": "length"}, [text("hi")], "max_tokens", None),
    ("one two three", {"stop_sequences": ["x", " three"]}, [text("one two")], "stop_sequence", " three"),
    ("stop", {"stop_sequences": ["stop"]}, [], "stop_sequence", "stop"),
    ("no stop", {"stop_sequences": ["never"]}, [text("no stop")], "end_turn", None),
    ("no stop", {"stop_sequences": ["stops"], "finish": "length"}, [text("no stop")], "max_tokens", None),
    (CALL, WITH_TOOLS, [tool_use(KOELN)], "tool_use", None),
    (CALL, {**WITH_TOOLS, "finish": "length"}, [tool_use(KOELN)], "max_tokens", None),
    (f"I look.\n{CALL}\n{CALL}", WITH_TOOLS, [text("I look.\n"), tool_use(KOELN), tool_use(KOELN)], "tool_use", None),
    (
        f"{CALL}\n{CALL}",
        {**WITH_TOOLS, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        [tool_use(KOELN)],
        "tool_use",
        None,
    ),
    # As chat completions do not say it: a call that was named is a tool_use all the same.
    (CALL, {**WITH_TOOLS, "tool_choice": {"type": "tool", "name": "get_weather"}}, [tool_use(KOELN)], "tool_use", None),
    (CALL + "END", {**WITH_TOOLS, "stop_sequences": ["END"]}, [tool_use(KOELN)], "stop_sequence", "END"),
    # More than the context of 1,000 tokens has room for, and exactly that.
    ("long", {"max_tokens": 32_000, "finish": "length"}, [text("long")], "model_context_window_exceeded", None),
    ("long", {"max_tokens": 998, "finish": "length"}, [text("long")], "max_tokens", None),
    (CALL, {}, [text(CALL)], "end_turn", None),
    (CALL, {**WITH_TOOLS, "tool_choice": {"type": "none"}}, [text(CALL)], "end_turn", None),
    # Cut off: nothing is repaired.
    (
        CALL[: CALL.index("ln")],
        {**WITH_TOOLS, "finish": "length"},
        [tool_use({"INVALID_JSON": '{"city": "Kö'})],
        "max_tokens",
        None,
    ),
    ("So " + CALL[:20], {**WITH_TOOLS, "finish": "length"}, [text("So ")], "max_tokens", None),
    (CALL[:20], {**WITH_TOOLS, "finish": "length", "tool_choice": {"type": "any"}}, [], "max_tokens", None),
]
THOUGHTS: list[tuple[str, dict[str, Any], list[dict[str, Any]], str, str | None]] = [
    ("<think>hm</think>\n\nYes", {}, [thinking("hm"), text("Yes")], "end_turn", None),
    ("<think>hm</think>", {}, [thinking("hm")], "end_turn", None),
    ("<think>hm", {"finish": "length"}, [thinking("hm")], "max_tokens", None),
    ("<think>hm</think>" + CALL, WITH_TOOLS, [thinking("hm"), tool_use(KOELN)], "tool_use", None),
    ("<think>hm</think>Yes", {"thinking": {"type": "disabled"}}, [text("Yes")], "end_turn", None),
    (
        "<think>hm</think>Yes",
        {"thinking": {"type": "adaptive", "display": "omitted"}},
        [thinking(""), text("Yes")],
        "end_turn",
        None,
    ),
    ("Yes", {"thinking": {"type": "adaptive"}}, [text("Yes")], "end_turn", None),
]


@pytest.mark.parametrize(
    ("output", "fields", "content", "reason", "sequence"),
    [*OUTPUTS, *((o, {"formats": THINKING, **f}, c, r, s) for o, f, c, r, s in THOUGHTS)],
)
def test_content(
    output: str, fields: dict[str, Any], content: list[dict[str, Any]], reason: str, sequence: str | None
) -> None:
    events, message = answers([output], **fields)
    whole = without_ids(message)
    assert whole["content"] == content
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)
    assert without_ids(fold(events)) == whole


TEXTS = ["<think>", "</think>", "\n\n", "héllo", "😀", " ", "<tool_call>", "{}", "STOP", "ST", '"', "}"]


def texts_of(message: dict[str, Any], kind: str = "text") -> str:
    return "".join(block[kind] for block in message["content"] if block["type"] == kind)


@settings(max_examples=60, deadline=None)
@given(
    output=st.lists(st.sampled_from([*TEXTS, CALL, CALL[:40]]), max_size=8).map("".join),
    cuts=st.lists(st.integers(1, 9), max_size=40),
    finish=st.sampled_from(["stop", "length"]),
    formats=st.sampled_from([PLAIN, THINKING]),
    fields=st.fixed_dictionaries(
        {},
        optional={
            "tools": st.just([WEATHER]),
            "stop_sequences": st.just(["STOP", "😀 "]),
            "thinking": st.sampled_from([{"type": "disabled"}, {"type": "adaptive", "display": "omitted"}]),
        },
    ),
)
def test_a_stream_adds_up_to_the_whole_however_it_is_cut(
    output: str, cuts: list[int], finish: str, formats: ModelFormats, fields: dict[str, Any]
) -> None:
    ids, pieces, at = token_ids(output), [], 0
    for cut in cuts:
        pieces.append(ids[at : at + cut])
        at += cut
    pieces.append(ids[at:])
    events, message = answers(pieces, formats=formats, finish=finish, **fields)
    uncut = answered([output], formats=formats, finish=finish, **fields).json()
    folded, whole = without_ids(fold(events)), without_ids(message)
    if formats is THINKING and folded["content"] != whole["content"]:
        # Reasoning that nothing opened is found in the whole; the stream has sent it as text by then.
        assert texts_of(whole, "thinking") in texts_of(folded)
        assert not texts_of(folded, "thinking")
        assert texts_of(folded).endswith(texts_of(whole))
        folded["content"] = whole["content"]
    assert folded == whole
    for answer in (whole, uncut):
        # Where a stop sequence ends the output, the tokens behind it in the same step count or do not.
        answer.pop("usage")
    assert whole == without_ids(uncut)


def test_cached_tokens_are_no_input_tokens() -> None:
    asked_for = [{"role": "user", "content": "12345678"}]
    events, message = answers(["ok"], finish="length", cached_tokens=5, messages=asked_for)
    for usage in (events[-2]["usage"], message["usage"]):
        assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (3, 5)
    # The stream has begun before the engine knows.
    usage = events[0]["message"]["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (8, 0)


def test_thinking_tokens() -> None:
    events, message = answers(["<think>", "hm", "</think>Yes"], formats=THINKING)
    for usage in (events[-2]["usage"], message["usage"]):
        assert usage["output_tokens"] == len(token_ids("<think>hm</think>Yes")) + 1
        assert usage["output_tokens_details"]["thinking_tokens"] > 0


@pytest.mark.parametrize(
    ("written", "given"),
    [
        ("{}", {}),
        ('{"a": 12345678901234567890123, "b": [null, 1.0]}', {"a": 12345678901234567890123, "b": [None, 1.0]}),
        (' {"a": 1}\n', {"a": 1}),
        ('{"a"', {"INVALID_JSON": '{"a"'}),
        ("", {"INVALID_JSON": ""}),
        ("[1]", {"INVALID_JSON": "[1]"}),
        ('{"a": NaN}', {"INVALID_JSON": '{"a": NaN}'}),
        ('{"a": 1} x', {"INVALID_JSON": '{"a": 1} x'}),
        ('{"a":' * 10_000, {"INVALID_JSON": '{"a":' * 10_000}),
    ],
)
def test_the_input_of_a_call(written: str, given: dict[str, Any]) -> None:
    assert json.loads(encode({"input": tool_input(written)})) == {"input": given}
