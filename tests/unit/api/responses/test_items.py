"""Input items: the form in which they are kept, the chat that they become, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses import ResponseItem

from tests.unit.api.responses.responses_support import PATH, Place, anonymous, checked

USER = {"role": "user", "content": "hi"}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I say"}]}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
SHORT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "in short"}]}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
OTHER_CALL = {**CALL, "call_id": "c2", "arguments": '{"a": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "42"}
PARTS = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
REFUSAL = {"type": "refusal", "refusal": "no"}
IMAGE = {"type": "input_image", "image_url": "data:"}


def kept(given: Any) -> list[dict[str, Any]]:
    """The items of a request, as they are listed."""
    place = Place()
    path = f"{PATH}/{place.whole({'input': given})['id']}/input_items"
    found: list[dict[str, Any]] = place.ask("GET", path, query="order=asc").json()["data"]
    for item in found:
        checked(ResponseItem, item)
    return found


def chat(*items: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    """The conversation as the chat template sees it."""
    place = Place()
    reply = place.ask("POST", f"{PATH}/input_tokens", {"input": list(items), **fields})
    assert reply.status == 200, reply.text
    return place.messages


def test_a_string_is_a_users_message() -> None:
    (item,) = kept("hi")
    assert item["id"].startswith("msg_")
    content = [{"type": "input_text", "text": "hi"}]
    assert anonymous(item) == {"type": "message", "status": "completed", "role": "user", "content": content}


def test_messages_are_kept() -> None:
    said = [{"type": "output_text", "text": "a", "annotations": [], "logprobs": None}, REFUSAL]
    mine, answer = kept(
        [
            {"role": "user", "content": "hi", "id": "msg_mine", "status": "incomplete"},
            {"type": "message", "role": "assistant", "id": "msg_1", "phase": "final_answer", "content": said},
        ]
    )
    assert (mine["id"], mine["status"]) == ("msg_mine", "incomplete")
    assert answer["content"] == [{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}, REFUSAL]


def test_calls_outputs_and_reasoning_are_kept() -> None:
    call, output, parts, reasoning = kept(
        [
            {**CALL, "caller": {"type": "direct"}, "namespace": None, "async": False},
            {**OUTPUT, "name": "f", "id": None, "status": None},
            {**OUTPUT, "output": PARTS},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None},
        ]
    )
    assert anonymous(call) == {"type": "function_call", "status": "completed", "name": "f", "arguments": "{}"}
    assert call["id"].startswith("fc_")
    assert (output["output"], output["name"], output["call_id"]) == ("42", "f", "c1")
    assert output["id"] != parts["id"]
    assert parts["output"] == PARTS
    assert reasoning == {"id": "rs_1", "type": "reasoning", "status": "completed", "summary": [], "content": []}


def said(text: str = "", *calls: str, **more: Any) -> dict[str, Any]:
    """An assistant's message with calls of those ids."""
    found: dict[str, Any] = {"role": "assistant", "content": text, **more}
    arguments = {"c1": {}, "c2": {"a": 1}}
    if calls:
        found["tool_calls"] = [
            {"type": "function", "id": call, "function": {"name": "f", "arguments": arguments[call]}} for call in calls
        ]
    return found


def result(call: str = "c1", content: str = "42", **more: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": content, **more}


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        (
            [{"role": role, "content": role} for role in ("system", "developer", "user", "assistant")],
            [
                {"role": "system", "content": "system"},
                {"role": "system", "content": "developer"},
                {"role": "user", "content": "user"},
                said("assistant"),
            ],
        ),
        (
            [{"role": "user", "content": [PARTS[0], {"type": "output_text", "text": "b"}]}],
            [{**USER, "content": "a\nb"}],
        ),
        ([{"role": "assistant", "content": [REFUSAL]}], [said("no")]),
        # A turn is one message.
        (
            [USER, THOUGHT, SAID, CALL, OTHER_CALL, OUTPUT, {**OUTPUT, "call_id": "c2"}, SAID],
            [USER, said("I say", "c1", "c2", reasoning_content="hm"), result(), result("c2"), said("I say")],
        ),
        # Templates want the results right behind the message that has the calls.
        ([CALL, SAID, OUTPUT], [said("I say", "c1"), result()]),
        ([THOUGHT, CALL, THOUGHT, OTHER_CALL], [said("", "c1", "c2", reasoning_content="hmhm")]),
        # Text ends a turn.
        ([SAID, SAID], [said("I say"), said("I say")]),
        ([SAID, THOUGHT, SAID], [said("I say"), said("I say", reasoning_content="hm")]),
        # As an answer has it that was cut off while the model was thinking.
        ([THOUGHT, USER], [said(reasoning_content="hm"), USER]),
        # A summary stands in for reasoning that is not there.
        ([SHORT], [said(reasoning_content="in short")]),
        ([{**THOUGHT, "summary": SHORT["summary"]}], [said(reasoning_content="hm")]),
        ([{"type": "reasoning", "summary": []}], [said()]),
        ([CALL, {**OUTPUT, "output": PARTS, "name": "f"}], [said("", "c1"), result(content="a\nb", name="f")]),
    ],
)
def test_the_chat_that_items_become(items: list[dict[str, Any]], messages: list[dict[str, Any]]) -> None:
    assert chat(*items) == messages
    instructed = {"role": "system", "content": "be brief"}
    assert chat(*items, instructions="be brief") == [instructed, *messages]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "compaction_trigger"}, "type"),
        ({"type": "web_search_call", "id": 1}, "id"),
        ({"type": 3}, "type"),
        ({"type": "message", "content": "x"}, "role"),
        ({"role": "tool", "content": "x"}, "role"),
        ({"role": "user"}, "content"),
        ({"role": "user", "content": 3}, "content"),
        ({"role": "user", "content": "x", "what": 1}, "what"),
        ({"role": "user", "content": "x", "status": "done"}, "status"),
        ({"role": "user", "content": [IMAGE]}, "content[0]"),
        ({"role": "system", "content": [IMAGE]}, "content[0].type"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "content[0]"),
        ({"role": "user", "content": [{"type": "input_file", "file_id": "file-1"}]}, "content[0].type"),
        ({"role": "user", "content": [REFUSAL]}, "content[0].type"),
        ({"type": "function_call", "call_id": "c", "name": "f"}, "arguments"),
        ({**CALL, "arguments": {}}, "arguments"),
        ({**CALL, "async": True}, "async"),
        ({**CALL, "namespace": 1}, "namespace"),
        (OUTPUT, "call_id"),
        ({"type": "function_call_output", "output": "x"}, "call_id"),
        ({**OUTPUT, "output": [{**IMAGE, "detail": "fine"}]}, "output[0].detail"),
        ({"type": "reasoning", "summary": [], "encrypted_content": "obls1.gAAA"}, "encrypted_content"),
        ({"type": "compaction"}, "encrypted_content"),
        ({"type": "item_reference"}, "id"),
        ({"type": "item_reference", "id": "msg_2"}, "id"),
        ({"id": "msg_2"}, "id"),
        ({}, "id"),
    ],
)
def test_refused_by_name(item: dict[str, Any], param: str) -> None:
    error = Place().refused(input=[USER, item])
    assert error["param"] == f"input[1].{param}"
    assert item.get("content") != [IMAGE] or "image" in error["message"]
