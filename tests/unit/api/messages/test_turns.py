from __future__ import annotations

import json
from typing import Any

import pytest

from openai_bls.api.messages.turns import call_id_of, tool_use_id
from openai_bls.output.tool_parsers.families.mistral import short_call_id
from openai_bls.output.tool_parsers.parser import new_call_id
from tests.unit.api.messages.messages_support import USER, field_at_fault, prompt_of

CALL = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Köln"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "xyz"}
SCHEMA = {"type": "json_schema", "schema": {"type": "object"}}


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def seen(messages: list[Any], **fields: Any) -> list[dict[str, Any]]:
    """The conversation as the chat template sees it."""
    found = prompt_of(messages=messages, **fields).messages
    assert found is not None
    return found


TEMPLATE_CALL = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Köln"}}}
TEMPLATE_RESULT = {"role": "tool", "tool_call_id": "1", "content": "sunny"}
SAYS_NOTHING = {"role": "assistant", "content": "", "tool_calls": [TEMPLATE_CALL]}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([user(text("a"), text("b", cache_control={"type": "ephemeral"}))], [{"role": "user", "content": "a\nb"}]),
        (
            [USER, {"role": "assistant", "content": "yes?"}, USER],
            [USER, {"role": "assistant", "content": "yes?"}, USER],
        ),
        (
            [USER, assistant(text("I "), text("look.", citations=None), CALL), user(RESULT, text("And?"))],
            [USER, {**SAYS_NOTHING, "content": "I look."}, TEMPLATE_RESULT, {"role": "user", "content": "And?"}],
        ),
        (
            [USER, assistant(THOUGHT, CALL), user(RESULT)],
            [USER, {**SAYS_NOTHING, "reasoning_content": "hm"}, TEMPLATE_RESULT],
        ),
        # What the SDK sends of its own answers.
        (
            [USER, assistant({**CALL, "caller": {"type": "direct"}, "toolset_name": None}), user(RESULT)],
            [USER, SAYS_NOTHING, TEMPLATE_RESULT],
        ),
        # Turns of one role are one turn.
        ([USER, USER], [{"role": "user", "content": "hi\nhi"}]),
        (
            [USER, {"role": "system", "content": "Be brief."}, USER],
            [USER, {"role": "system", "content": "Be brief."}, USER],
        ),
        # An assistant's turn that says nothing yet is none.
        ([USER, {"role": "assistant", "content": ""}], [USER]),
        ([USER, assistant()], [USER]),
    ],
)
def test_what_the_template_sees(messages: list[Any], expected: list[dict[str, Any]]) -> None:
    assert seen(messages) == expected
    assert prompt_of(messages=messages).chat_template_kwargs == {}


@pytest.mark.parametrize(
    ("block", "content"),
    [
        ({"content": "sunny"}, "sunny"),
        ({"content": [text("sunny"), text("warm")]}, "sunny\nwarm"),
        ({}, ""),
        ({"content": "", "is_error": False}, ""),
        ({"content": "no such city", "is_error": True}, "Error:\nno such city"),
        ({"content": [text("a"), text("b")], "is_error": True}, "Error:\na\nb"),
        ({"is_error": True}, "Error:"),
    ],
)
def test_tool_results(block: dict[str, Any], content: str) -> None:
    result = {"type": "tool_result", "tool_use_id": "toolu_1", **block}
    messages = seen([USER, assistant(CALL), user(result, {**RESULT, "tool_use_id": "toolu_2"}, text("x"))])
    # In their order.
    assert [message["content"] for message in messages[2:]] == [content, "sunny", "x"]


@pytest.mark.parametrize("new_id", [new_call_id, short_call_id])
def test_ids_come_back_in_the_models_own_form(new_id: Any) -> None:
    call_id = new_id()
    outside = tool_use_id(call_id)
    assert outside.startswith("toolu_")
    assert call_id_of(outside) == call_id.removeprefix("call_")


@pytest.mark.parametrize("system", ["Be brief.", [text("Be brief.", cache_control=None)], "", []])
def test_system(system: Any) -> None:
    assert seen([USER], system=system) == [{"role": "system", "content": "Be brief."}] * bool(system) + [USER]


def test_prefill() -> None:
    prompt = prompt_of(messages=[USER, assistant(text("The "), text("answer"))])
    assert prompt.messages == [USER, {"role": "assistant", "content": "The answer"}]
    assert prompt.chat_template_kwargs == {"continue_final_message": True, "add_generation_prompt": False}


def test_arguments_survive_to_the_last_digit() -> None:
    numbers = {"big": 12345678901234567890123, "small": 0.1, "nested": {"a": [None, True, "é"]}}
    call = {**CALL, "input": numbers}
    arguments = seen([USER, assistant(call), user(RESULT)])[1]["tool_calls"][0]["function"]["arguments"]
    assert json.dumps(arguments) == json.dumps(numbers)


@pytest.mark.parametrize(
    ("messages", "fields", "place"),
    [
        ([USER, {"role": "assistant", "content": "a "}], {}, "messages"),
        ([USER, assistant(CALL)], {}, "messages"),
        ([USER, assistant(THOUGHT)], {}, "messages"),
        ([USER, {"role": "assistant", "content": "a"}], {"output_config": {"format": SCHEMA}}, "output_config.format"),
        (
            [USER, {"role": "assistant", "content": "a"}],
            {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000, "thinks": True},
            "thinking",
        ),
        ([USER], {"system": [{"type": "image"}]}, "system.0"),
        ([USER], {"system": [text("a"), {"type": "text"}]}, "system.1.text"),
        ([USER, user(text("a"), {"type": "document", "source": {}})], {}, "messages.1.content.1"),
        ([{"role": "system", "content": [RESULT]}, USER], {}, "messages.0.content.0"),
        ([{"role": "user", "content": ""}], {}, "messages.0.content"),
        ([USER, assistant(), USER], {}, "messages.1.content"),
        ([{"role": "tool", "content": "x"}], {}, "messages.0.role"),
        ([{"role": "user"}], {}, "messages.0.content"),
        ([{**USER, "name": "x"}], {}, "messages.0.name"),
    ],
)
def test_what_cannot_be_gone_on_from_and_what_is_no_turn(messages: list[Any], fields: Any, place: str) -> None:
    assert field_at_fault(messages=messages, **fields) == place


@pytest.mark.parametrize(
    ("turn", "block", "place"),
    [
        *((user, {"type": kind}, "") for kind in ("document", "search_result", "container_upload", "x" * 10_000)),
        (user, CALL, ""),
        (user, THOUGHT, ""),
        (user, {"type": "image"}, ".source"),
        (user, {**RESULT, "content": [{"type": "image", "source": {"type": "path"}}]}, ".content.0.source.type"),
        (assistant, {"type": "image", "source": {"type": "url", "url": "https://a/b"}}, ""),
        (user, {**RESULT, "content": [RESULT]}, ".content.0"),
        (user, {**RESULT, "content": [{"type": "tool_reference"}]}, ".content.0"),
        (user, {}, ".type"),
        (user, {"type": 7}, ".type"),
        (user, {"type": "text"}, ".text"),
        (user, text("a", what=1), ".what"),
        (user, {"type": "text", "text": 7}, ".text"),
        (user, text("a", citations=[{}]), ".citations"),
        (assistant, RESULT, ""),
        (assistant, {"type": "redacted_thinking", "data": "x"}, ""),
        (assistant, {"type": "server_tool_use", "id": "x", "name": "web_search"}, ""),
        (assistant, {**CALL, "input": "x"}, ".input"),
        (assistant, {**CALL, "id": ""}, ".id"),
        (assistant, {**CALL, "caller": {"type": "code_execution_20250825"}}, ".caller"),
    ],
)
def test_blocks_that_are_refused(turn: Any, block: dict[str, Any], place: str) -> None:
    assert field_at_fault(messages=[turn(block), USER]) == f"messages.0.content.0{place}"
