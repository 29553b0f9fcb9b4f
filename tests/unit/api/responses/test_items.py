"""Input items: what is taken, in which form it is kept, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses import ResponseItem

from openai_bls.api.responses.items import Item, read_input
from openai_bls.core.errors import InvalidRequestError
from tests.unit.api.responses.responses_support import anonymous, checked


def find_nothing(item_id: str, param: str) -> Item:
    raise InvalidRequestError(f"no {item_id}, supported are others", param=param)


def read(*items: dict[str, Any]) -> list[Item]:
    result = read_input(list(items), find_nothing)
    for item in result:
        checked(ResponseItem, item)
    return result


def refused(item: dict[str, Any]) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        read({"role": "user", "content": "hi"}, item)
    return caught.value


def test_a_string_is_a_users_message() -> None:
    (item,) = read_input("hi", find_nothing)
    assert item["id"].startswith("msg_")
    assert anonymous(item) == {
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": [{"type": "input_text", "text": "hi"}],
    }
    assert read_input(None, find_nothing) == []


def test_ids_and_status_are_kept() -> None:
    (item,) = read({"role": "user", "content": "hi", "id": "msg_mine", "status": "incomplete"})
    assert (item["id"], item["status"]) == ("msg_mine", "incomplete")


def test_what_the_model_said() -> None:
    (item,) = read(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "phase": "final_answer",
            "content": [
                {"type": "output_text", "text": "a", "annotations": [], "logprobs": None},
                {"type": "refusal", "refusal": "b"},
            ],
        }
    )
    assert item["content"] == [
        {"type": "output_text", "text": "a", "annotations": [], "logprobs": []},
        {"type": "refusal", "refusal": "b"},
    ]


def test_calls_outputs_and_reasoning() -> None:
    call, output, parts, reasoning = read(
        {
            "type": "function_call",
            "call_id": "c",
            "name": "f",
            "arguments": "{}",
            "caller": {"type": "direct"},
            "namespace": None,
            "async": False,
        },
        {"type": "function_call_output", "call_id": "c", "output": "x", "name": "f", "id": None, "status": None},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None},
    )
    assert anonymous(call) == {"type": "function_call", "status": "completed", "name": "f", "arguments": "{}"}
    assert call["id"].startswith("fc_")
    assert (output["output"], output["name"], output["call_id"]) == ("x", "f", "c")
    assert output["id"] != parts["id"]
    assert parts["output"] == [{"type": "input_text", "text": "x"}]
    assert reasoning == {"id": "rs_1", "type": "reasoning", "status": "completed", "summary": [], "content": []}


def test_references() -> None:
    asked: list[tuple[str, str]] = []

    def find(item_id: str, param: str) -> Item:
        asked.append((item_id, param))
        return {"id": item_id, "type": "message"}

    found = read_input([{"id": "msg_1"}, {"type": "item_reference", "id": "msg_2"}], find)
    assert found == [{"id": "msg_1", "type": "message"}, {"id": "msg_2", "type": "message"}]
    assert asked == [("msg_1", "input[0].id"), ("msg_2", "input[1].id")]
    assert refused({"type": "item_reference", "id": "msg_2"}).param == "input[1].id"


IMAGE = {"type": "input_image", "image_url": "data:"}


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "web_search_call", "id": "ws_1"}, "type"),
        ({"type": "computer_call_output"}, "type"),
        ({"type": 3}, "type"),
        ({"type": "message", "content": "x"}, "role"),
        ({"role": "tool", "content": "x"}, "role"),
        ({"role": "user"}, "content"),
        ({"role": "user", "content": 3}, "content"),
        ({"role": "user", "content": "x", "what": 1}, "what"),
        ({"role": "user", "content": "x", "status": "done"}, "status"),
        ({"role": "user", "content": [IMAGE]}, "content[0].type"),
        ({"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}, "content[0].type"),
        ({"type": "function_call", "call_id": "c", "name": "f"}, "arguments"),
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}, "arguments"),
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "async": True}, "async"),
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "namespace": "n"}, "namespace"),
        ({"type": "function_call_output", "output": "x"}, "call_id"),
        ({"type": "function_call_output", "call_id": "c", "output": [IMAGE]}, "output[0].type"),
        ({"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}, "encrypted_content"),
        ({"type": "compaction"}, "encrypted_content"),
        ({"type": "item_reference"}, "id"),
        ({}, "id"),
    ],
)
def test_refused_by_name(item: dict[str, Any], param: str) -> None:
    error = refused(item)
    assert error.param == f"input[1].{param}"
    assert param in error.message or "supported" in error.message or "refusals" in error.message


def test_images_are_refused_with_the_reason() -> None:
    message = refused({"role": "user", "content": [IMAGE]}).message
    assert "input_image" in message
    assert "text is the only modality" in message
