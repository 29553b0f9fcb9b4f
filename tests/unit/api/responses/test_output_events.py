"""What a stream says, event by event, and that it says what a whole response says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openai_bls.api.responses.responses import Draft
from openai_bls.api.responses.schema import CreateRequest
from openai_bls.api.responses.writers import StreamedResponse
from openai_bls.core.engine_types import SamplingParams
from openai_bls.core.errors import OverloadedError
from tests.unit.api.http_support import asked
from tests.unit.api.responses.responses_support import (
    THINKS_AND_CALLS,
    WEATHER,
    Place,
    anonymous,
    call_text,
    checked_event,
)
from tests.unit.core_support import Bench, FakeSink

TOOLS: dict[str, Any] = {"tools": [WEATHER]}


def part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "annotations": [], "logprobs": [], "text": text}


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_a_message() -> None:
    events = Place().streamed({}, ["Hé", "llo"])
    assert kinds(events) == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        "completed",
    ]
    created, _, added, part_added, first, second, text, part_done, done, completed = events
    assert created["response"]["status"] == "in_progress"
    assert (created["response"]["output"], created["response"]["usage"]) == ([], None)
    item_id = added["item"]["id"]
    assert item_id.startswith("msg_")
    begun = {"id": item_id, "type": "message", "status": "in_progress", "role": "assistant", "content": []}
    assert added["item"] == begun
    assert part_added["part"] == part("")
    assert (first["delta"], second["delta"], first["logprobs"]) == ("Hé", "llo", [])
    assert (text["text"], text["logprobs"]) == ("Héllo", [])
    assert part_done["part"] == part("Héllo")
    assert done["item"] == {**begun, "status": "completed", "content": [part("Héllo")]}
    for event in (part_added, first, second, text, part_done):
        assert (event["item_id"], event["output_index"], event["content_index"]) == (item_id, 0, 0)
    response = completed["response"]
    assert response["output"] == [done["item"]]
    assert response["id"] == created["response"]["id"]
    assert response["status"] == "completed"
    assert response["usage"]["output_tokens"] == 7
    assert response["completed_at"] >= response["created_at"]


def test_reasoning_a_message_and_calls() -> None:
    text = "<think>\nhm, hm\n</think>\n\nLook:" + call_text("weather", '{"city": "Paris"}') + call_text("weather", "{}")
    events = Place().streamed(TOOLS, list(text))
    joined = [kind for at, kind in enumerate(kinds(events)) if at == 0 or kind != kinds(events)[at - 1]]
    added = ["output_item.added", "content_part.added"]
    done = ["content_part.done", "output_item.done"]
    assert joined == [
        *("created", "in_progress"),
        *(*added, "reasoning_text.delta", "reasoning_text.done", *done),
        *(*added, "output_text.delta", "output_text.done", *done),
        *["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"] * 2,
        "completed",
    ]
    reasoning, message, paris, nothing = events[-1]["response"]["output"]
    assert reasoning["id"].startswith("rs_")
    assert (reasoning["summary"], reasoning["content"]) == ([], [{"type": "reasoning_text", "text": "hm, hm"}])
    assert message["content"][0]["text"] == "Look:"
    assert paris["id"].startswith("fc_")
    assert paris["call_id"].startswith("call_")
    assert paris["call_id"] != nothing["call_id"]
    assert (paris["name"], paris["arguments"], paris["status"]) == ("weather", '{"city": "Paris"}', "completed")
    assert nothing["arguments"] == "{}"
    begun = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert [item["id"] for item in begun] == [item["id"] for item in (reasoning, message, paris, nothing)]
    assert begun[2] == {**paris, "arguments": "", "status": "in_progress"}


def told(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output items as the deltas tell them, each event checked against those before it."""
    items: list[dict[str, Any]] = []
    text = ""
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(items)
            items.append(event["item"])
            text = ""
        elif kind.endswith(".delta"):
            assert event["item_id"] == items[event["output_index"]]["id"]
            assert event["output_index"] == len(items) - 1
            text += event["delta"]
        elif kind in ("output_text.done", "reasoning_text.done"):
            assert event["text"] == text
        elif kind == "content_part.done":
            assert event["part"]["text"] == text
            items[-1]["content"].append(event["part"])
        elif kind == "function_call_arguments.done":
            assert event["arguments"] == text
            items[-1]["arguments"] = text
        elif kind == "output_item.done":
            items[-1]["status"] = event["item"]["status"]
            assert items[-1] == event["item"]
    return items


WORDS = st.text("ab \né你😀<>{}\"'\\", max_size=12)
CALLS = st.builds(
    call_text,
    st.sampled_from(["weather", "f"]),
    st.sampled_from(["{}", '{"city": "Paris"}', '{"a": {"b": ["</tool_call>", 1]}}', '{"a": ', "nonsense"]),
)
TEXTS = st.builds(
    lambda thought, parts: thought + "".join(parts),
    st.one_of(st.just(""), st.builds("<think>{}</think>\n\n".format, WORDS), st.just("<think>never ends")),
    st.lists(st.one_of(WORDS, CALLS), max_size=5),
)


Parts = tuple[str, str, list[tuple[str, str]]]


def parts(output: list[dict[str, Any]]) -> Parts:
    """(reasoning, text, calls) of output items."""
    texts = {"reasoning": "", "message": ""}
    calls = []
    for item in output:
        if item["type"] == "function_call":
            calls.append((item["name"], item["arguments"]))
        else:
            texts[item["type"]] += item["content"][0]["text"]
    return texts["reasoning"], texts["message"], calls


def as_chat(text: str, reason: str) -> Parts:
    """Likewise, of the chat completion with the same text."""
    bench = Bench(formats=THINKS_AND_CALLS)
    tools = [{"type": "function", "function": {"name": WEATHER["name"]}}]
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": tools}
    answer = asked(bench, "/v1/chat/completions", body, lambda: bench.engine.deliver(0, text, reason)).json()
    message = answer["choices"][0]["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    return message.get("reasoning", ""), message["content"] or "", calls


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    text=TEXTS,
    cuts=st.lists(st.integers(0, 200), max_size=8),
    reason=st.sampled_from(["stop", "length"]),
    logprobs=st.booleans(),
)
def test_streams_and_whole_responses_say_the_same(text: str, cuts: list[int], reason: str, logprobs: bool) -> None:
    """However the text is cut, and the deltas add up to it."""
    body = {**TOOLS, "store": False}
    if logprobs:
        body |= {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    places = sorted({min(cut, len(text)) for cut in cuts})
    pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    events = Place().streamed(body, pieces, reason)
    final = events[-1]["response"]
    assert told(events) == final["output"]
    assert anonymous(Place().whole(body, pieces, reason)) == anonymous(final)
    assert parts(final["output"]) == as_chat(text, reason)
    assert final["status"] == ("incomplete" if reason == "length" else "completed")
    statuses = [item["status"] for item in final["output"]]
    assert statuses == ["completed"] * (len(statuses) - 1) + [final["status"]]
    if not logprobs:
        # With them, what is told of a token depends on the piece in which it begins.
        alone = Place().whole(body, [text], reason)
        assert anonymous(alone["output"]) == anonymous(final["output"])


def test_the_end_at_max_output_tokens() -> None:
    events = Place().streamed({"max_output_tokens": 3}, ["abc"], "length")
    assert kinds(events)[-2:] == ["output_item.done", "incomplete"]
    response = events[-1]["response"]
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["completed_at"] is None


@pytest.mark.parametrize(
    ("text", "fields", "reason", "item"),
    [
        ("<think>hm", TOOLS, "length", {"type": "reasoning", "status": "incomplete"}),
        (
            '<tool_call>{"name": "weather", "arguments": {"ci',
            TOOLS,
            "length",
            {"type": "function_call", "status": "incomplete", "arguments": '{"ci'},
        ),
        # An answer without anything is an empty message.
        ("", {}, "stop", {"status": "completed", "content": [part("")]}),
        ("", {}, "length", {"status": "incomplete", "content": [part("")]}),
        ("<think>hm</think>yes", {"include_reasoning": False}, "stop", {"content": [part("yes")]}),
    ],
)
def test_one_item(text: str, fields: dict[str, Any], reason: str, item: dict[str, Any]) -> None:
    (found,) = Place().whole(fields, [text], reason)["output"]
    assert {**found, **item} == found
    assert anonymous(told(Place().streamed(fields, [text], reason))) == [anonymous(found)]


def test_logprobs() -> None:
    body = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    events = Place(Bench()).streamed(body, ["a", "bc"])
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [[token["token"] for token in event["logprobs"]] for event in deltas] == [["a"], ["b", "c"]]
    (done,) = [event for event in events if event["type"] == "response.output_text.done"]
    assert done["logprobs"] == deltas[0]["logprobs"] + deltas[1]["logprobs"]
    (item,) = events[-1]["response"]["output"]
    assert item["content"][0]["logprobs"] == done["logprobs"]
    first = done["logprobs"][0]
    assert (first["logprob"], first["bytes"], len(first["top_logprobs"])) == (-0.5, [97], 2)
    assert events[-1]["response"]["top_logprobs"] == 2
    assert anonymous(Place(Bench()).whole(body, ["a", "bc"])) == anonymous(events[-1]["response"])


def test_logprobs_are_the_messages_alone() -> None:
    body = {"include": ["message.output_text.logprobs"], **TOOLS}
    pieces = ["<think>", "hm", "</think>", "yes", call_text("weather", "{}")]
    _, message, _ = Place().whole(body, pieces)["output"]
    # The tokens of the marker come with what follows it.
    assert [token["token"] for token in message["content"][0]["logprobs"]] == list("</think>yes")


def test_tokens_without_text_at_the_end_keep_their_logprobs() -> None:
    """Half a character is told as U+FFFD with the last delta, or not at all; its token is told."""
    body = {"include": ["message.output_text.logprobs"]}
    place = Place(Bench())

    def feed() -> None:
        place.bench.engine.deliver(0, "a")
        # Special tokens have no text.
        place.bench.engine.deliver(0, [place.bench.model.info.eos_token_ids[0]], "length")

    events = place.create_fed({"input": "hi", "stream": True, **body}, feed).events
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [event["delta"] for event in deltas] == ["a", ""]
    assert [len(event["logprobs"]) for event in deltas] == [1, 1]
    assert len(events[-1]["response"]["output"][0]["content"][0]["logprobs"]) == 2


def test_usage() -> None:
    reply = Place().create({"input": "four"}, ["<think>", "abc", "</think>de"], cached_tokens=2)
    usage = reply.json()["usage"]
    assert usage["input_tokens"] == 4
    assert usage["total_tokens"] == 4 + usage["output_tokens"]
    assert 0 < usage["output_tokens_details"]["reasoning_tokens"] <= usage["output_tokens"]
    assert usage["input_tokens_details"] == {"cached_tokens": 2, "cache_write_tokens": 0}


@pytest.mark.parametrize("invalid", [True, False])
def test_an_error_before_the_first_output_has_its_own_status(invalid: bool) -> None:
    for stream in (False, True):
        place = Place()
        reply = place.create({"stream": stream}, ["", ""], "error", error="no", invalid=invalid)
        assert reply.status == (400 if invalid else 500)
        assert reply.error["message"] == "no"
        assert len(place.store) == 0


def test_an_error_after_it_ends_the_stream() -> None:
    place = Place()
    reply = place.create({"stream": True}, ["<think>a</think>b", ""], "error", error="no")
    assert reply.status == 200
    events = reply.events
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert (events[-2]["message"], events[-2]["code"]) == ("no", "server_error")
    response = events[-1]["response"]
    assert (response["status"], response["error"]) == ("failed", {"code": "server_error", "message": "no"})
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    assert response["output"][1]["content"][0]["text"] == "b"
    assert response["usage"] is None
    assert len(place.store) == 0
    place.bench.service.check_admission("")


def test_an_error_after_keep_alives_still_opens_the_stream() -> None:
    """Then the status has gone out already."""
    draft = Draft(CreateRequest(), [], "m", SamplingParams())
    sink = FakeSink()
    StreamedResponse(sink, lambda error: error, lambda encoded: encoded, draft, None, False).failed(
        OverloadedError("no")
    )
    blocks = sink.raw[0].decode().split("\n\n")
    events = [json.loads(block.split("\ndata: ")[1]) for block in blocks[:-1]]
    for event in events:
        checked_event(event)
    assert kinds(events) == ["created", "in_progress", "error", "failed"]
    assert [event["sequence_number"] for event in events] == [0, 1, 2, 3]
