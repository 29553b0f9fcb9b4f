from __future__ import annotations

import json
from typing import Any

import pytest

from openai_bls.api.messages.turns import call_id_of, tool_use_id
from openai_bls.core.errors import InvalidRequestError
from openai_bls.output.tool_parsers.families.mistral import short_call_id
from openai_bls.output.tool_parsers.parser import new_call_id
from tests.unit.api.messages.messages_support import USER, converted

CALL = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Köln"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "xyz"}


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def seen(messages: list[Any], **fields: Any) -> list[dict[str, Any]]:
    """The conversation as the chat template sees it."""
    prompt = converted(messages=messages, **fields).valid.prompt
    assert prompt is not None
    assert prompt.messages is not None
    return prompt.messages


def refusal(messages: list[Any], **fields: Any) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        converted(messages=messages, **fields)
    return caught.value.message


TEMPLATE_CALL = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Köln"}}}
TEMPLATE_RESULT = {"role": "tool", "tool_call_id": "1", "content": "sunny"}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([USER], [{"role": "user", "content": "hi"}]),
        ([user(text("a"), text("b", cache_control={"type": "ephemeral"}))], [{"role": "user", "content": "a\nb"}]),
        (
            [USER, {"role": "assistant", "content": "yes?"}, USER],
            [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": "yes?"},
                {"role": "user", "content": "hi"},
            ],
        ),
        (
            [USER, assistant(text("I "), text("look.", citations=None), CALL), user(RESULT, text("And?"))],
            [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": "I look.", "tool_calls": [TEMPLATE_CALL]},
                TEMPLATE_RESULT,
                {"role": "user", "content": "And?"},
            ],
        ),
        (
            [USER, assistant(THOUGHT, CALL), user(RESULT)],
            [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [TEMPLATE_CALL]},
                TEMPLATE_RESULT,
            ],
        ),
        # What the SDK sends of its own answers.
        (
            [USER, assistant({**CALL, "caller": {"type": "direct"}, "toolset_name": None}), user(RESULT)],
            [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": "", "tool_calls": [TEMPLATE_CALL]},
                TEMPLATE_RESULT,
            ],
        ),
        # Turns of one role are one turn.
        ([USER, USER], [{"role": "user", "content": "hi\nhi"}]),
        (
            [USER, {"role": "system", "content": "Be brief."}, USER],
            [
                {"role": "user", "content": "hi"},
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "hi"},
            ],
        ),
        # An assistant's turn that says nothing yet is none.
        ([USER, {"role": "assistant", "content": ""}], [{"role": "user", "content": "hi"}]),
        ([USER, assistant()], [{"role": "user", "content": "hi"}]),
    ],
)
def test_what_the_template_sees(messages: list[Any], expected: list[dict[str, Any]]) -> None:
    assert seen(messages) == expected


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
    assert seen([USER, assistant(CALL), user(result)])[-1]["content"] == content


def test_results_keep_their_order() -> None:
    other = {**RESULT, "tool_use_id": "toolu_2", "content": "rainy"}
    roles = [(m["role"], m["content"]) for m in seen([USER, assistant(CALL), user(RESULT, other, text("x"))])]
    assert roles[2:] == [("tool", "sunny"), ("tool", "rainy"), ("user", "x")]


@pytest.mark.parametrize("new_id", [new_call_id, short_call_id])
def test_ids_come_back_in_the_models_own_form(new_id: Any) -> None:
    call_id = new_id()
    outside = tool_use_id(call_id)
    assert outside.startswith("toolu_")
    assert call_id_of(outside) == call_id.removeprefix("call_")


@pytest.mark.parametrize("system", ["Be brief.", [text("Be brief.", cache_control=None)]])
def test_system(system: Any) -> None:
    assert seen([USER], system=system)[0] == {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize("system", ["", []])
def test_an_empty_system_prompt_is_none(system: Any) -> None:
    assert [message["role"] for message in seen([USER], system=system)] == ["user"]


def test_prefill() -> None:
    prompt = converted(messages=[USER, assistant(text("The "), text("answer"))]).valid.prompt
    assert prompt is not None
    assert prompt.messages is not None
    assert prompt.messages[-1] == {"role": "assistant", "content": "The answer"}
    assert prompt.chat_template_kwargs == {"continue_final_message": True, "add_generation_prompt": False}


def test_no_prefill_otherwise() -> None:
    for messages in ([USER], [USER, assistant()], [USER, {"role": "assistant", "content": "a"}, USER]):
        prompt = converted(messages=messages).valid.prompt
        assert prompt is not None
        assert prompt.chat_template_kwargs == {}


SCHEMA = {"type": "json_schema", "schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("messages", "fields", "told"),
    [
        ([USER, {"role": "assistant", "content": "a "}], {}, "trailing whitespace"),
        ([USER, assistant(CALL)], {}, "'tool_result' blocks are missing"),
        ([USER, assistant(THOUGHT)], {}, "must end with text"),
        ([USER, {"role": "assistant", "content": "a"}], {"output_config": {"format": SCHEMA}}, "output_config.format"),
        (
            [USER, {"role": "assistant", "content": "a"}],
            {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000, "thinks": True},
            "thinking",
        ),
    ],
)
def test_what_cannot_be_gone_on_from(messages: list[Any], fields: dict[str, Any], told: str) -> None:
    assert told in refusal(messages, **fields)


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([user({"type": "image", "source": {}})], "messages.0.content.0: a block of type 'image' is not supported"),
        (
            [USER, user(text("a"), {"type": "document", "source": {}})],
            "messages.1.content.1: a block of type 'document'",
        ),
        ([user({"type": "search_result"})], "'search_result'"),
        ([user({"type": "container_upload"})], "'container_upload'"),
        ([assistant({"type": "redacted_thinking", "data": "x"}), USER], "'redacted_thinking'"),
        ([assistant({"type": "server_tool_use", "id": "x", "name": "web_search"}), USER], "'server_tool_use'"),
        ([user({"type": "nonsense"})], "'nonsense'"),
        ([user(CALL)], "messages.0.content.0: a block of type 'tool_use' is not supported: it cannot stand in"),
        ([assistant(RESULT), USER], "'tool_result'"),
        ([user(THOUGHT)], "'thinking'"),
        ([{"role": "system", "content": [RESULT]}, USER], "'tool_result'"),
        ([user({**RESULT, "content": [{"type": "image"}]})], "messages.0.content.0.content.0: a block of type 'image'"),
        ([user({**RESULT, "content": [RESULT]})], "a tool's result"),
        ([user({**RESULT, "content": [{"type": "tool_reference"}]})], "'tool_reference'"),
        ([user({})], "messages.0.content.0.type: Field required"),
        ([user({"type": 7})], "messages.0.content.0.type: Expected `str`"),
        ([user({"type": "text"})], "messages.0.content.0.text: Field required"),
        ([user(text("a", what=1))], "messages.0.content.0.what: Extra inputs are not permitted"),
        ([user({"type": "text", "text": 7})], "messages.0.content.0.text: Expected `str`, got `int`"),
        ([user(text("a", citations=[{}]))], "messages.0.content.0.citations"),
        ([assistant({**CALL, "input": "x"}), USER], "messages.0.content.0.input: Expected `object`, got `str`"),
        ([assistant({**CALL, "id": ""}), USER], "messages.0.content.0.id"),
        ([assistant({**CALL, "caller": {"type": "code_execution_20250825"}}), USER], "messages.0.content.0.caller"),
        ([{"role": "user", "content": ""}], "messages.0.content: every message"),
        ([USER, assistant(), USER], "messages.1.content: every message"),
        ([{"role": "tool", "content": "x"}], "messages.0.role: Invalid enum value 'tool'"),
        ([{"role": "user"}], "messages.0.content: Field required"),
        ([{**USER, "name": "x"}], "messages.0.name: Extra inputs"),
        ([], "messages: Expected `array` of length >= 1"),
    ],
)
def test_what_is_refused(messages: list[Any], told: str) -> None:
    assert told in refusal(messages)


@pytest.mark.parametrize(
    ("system", "told"),
    [
        ([{"type": "image"}], "system.0: a block of type 'image'"),
        ([text("a"), {"type": "text"}], "system.1.text: Field required"),
        (7, "system: Expected"),
    ],
)
def test_bad_system_prompts(system: Any, told: str) -> None:
    assert told in refusal([USER], system=system)


def test_the_types_of_a_long_type_are_cut() -> None:
    assert len(refusal([user({"type": "x" * 10_000})])) < 400


def test_arguments_survive_to_the_last_digit() -> None:
    numbers = {"big": 12345678901234567890123, "small": 0.1, "nested": {"a": [None, True, "é"]}}
    call = {**CALL, "input": numbers}
    arguments = seen([USER, assistant(call), user(RESULT)])[1]["tool_calls"][0]["function"]["arguments"]
    assert json.dumps(arguments) == json.dumps(numbers)
