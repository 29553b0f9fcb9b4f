from __future__ import annotations

import json
from typing import Any

import pytest

from openai_bls.api.messages.turns import call_id_of, tool_input, tool_use_id
from openai_bls.output.tool_parsers.families.json_calls.mistral import short_call_id
from openai_bls.output.tool_parsers.parser import new_call_id
from tests.unit.api.messages.messages_support import USER, converted, field_at_fault, prompt_of

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


def document(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": value}, **more}


def seen(messages: list[Any], **fields: Any) -> list[dict[str, Any]]:
    """The conversation as the chat template sees it."""
    found = prompt_of(messages=messages, **fields).messages
    assert found is not None
    return found


TEMPLATE_CALL = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Köln"}}}
TEMPLATE_RESULT = {"role": "tool", "tool_call_id": "1", "content": "sunny"}
SAYS_NOTHING = {"role": "assistant", "content": "", "tool_calls": [TEMPLATE_CALL]}
THINKS = {"role": "assistant", "reasoning_content": "hm", "content": ""}


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
        # Answers of the server's own that cannot be gone on from: the next one is a turn of its own.
        ([USER, assistant(THOUGHT)], [USER, THINKS]),
        ([USER, assistant(THOUGHT, text("\n"))], [USER, {**THINKS, "content": "\n"}]),
        ([USER, assistant(CALL)], [USER, SAYS_NOTHING]),
        ([USER, assistant(text("I look."), CALL)], [USER, {**SAYS_NOTHING, "content": "I look."}]),
        # Nor need a call have a result, or an answer any content.
        ([USER, assistant(CALL), USER], [USER, SAYS_NOTHING, USER]),
        ([USER, assistant(), USER], [USER, {"role": "assistant", "content": ""}, USER]),
        ([USER, assistant(THOUGHT), USER], [USER, THINKS, USER]),
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


BILLING = text("x-anthropic-billing-header: cc_version=2.1.197; cch=3f1ab;")


@pytest.mark.parametrize(
    ("system", "shown"),
    [
        ([BILLING, text("Be brief."), text("Be kind.")], "Be brief.\nBe kind."),
        ([BILLING], None),
        ([text("Mind x-anthropic-billing-header: it")], "Mind x-anthropic-billing-header: it"),
    ],
)
def test_a_block_that_is_new_with_each_request_is_left_out(system: list[Any], shown: str | None) -> None:
    expected = [] if shown is None else [{"role": "system", "content": shown}]
    answer = {"role": "assistant", "content": "yes?"}
    assert seen([USER], system=system) == [*expected, USER]
    assert seen([USER, answer, {"role": "system", "content": system}, USER]) == [USER, answer, *expected, USER]


def test_system_messages_for_one_turn() -> None:
    reminder = {"role": "system", "content": "Mind the gap.", "clear_at": "next_user_message"}
    shown = {"role": "system", "content": "Mind the gap."}
    answer = {"role": "assistant", "content": "yes?"}
    assert seen([USER, reminder]) == [USER, shown]
    assert seen([USER, reminder, answer, USER]) == [USER, answer, USER]
    assert seen([USER, {**reminder, "clear_at": "never"}, answer, USER]) == [USER, shown, answer, USER]


@pytest.mark.parametrize(
    ("block", "content"),
    [
        (document("abc"), "Document:\nabc"),
        (document("abc", title="T", context="C", citations={"enabled": False}), "Document: T\nContext: C\nabc"),
        ({"type": "document", "source": {"type": "content", "content": "abc"}}, "Document:\nabc"),
        (
            {"type": "document", "title": None, "source": {"type": "content", "content": [text("a"), text("b")]}},
            "Document:\na\nb",
        ),
        (
            {"type": "search_result", "title": "T", "source": "https://a", "content": [text("a"), text("b")]},
            "Search result: T\nSource: https://a\na\nb",
        ),
    ],
)
def test_documents_are_text(block: dict[str, Any], content: str) -> None:
    assert seen([user(text("Look:"), block)]) == [{"role": "user", "content": f"Look:\n{content}"}]
    result = {**RESULT, "content": [block]}
    assert seen([USER, assistant(CALL), user(result)])[2]["content"] == content


def test_references_to_tools_are_text() -> None:
    result = {**RESULT, "content": [{"type": "tool_reference", "tool_name": "get_weather"}]}
    assert seen([USER, assistant(CALL), user(result)])[2]["content"] == "Tool: get_weather"


def test_images_of_documents_keep_their_places() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://a/b.png"}}
    inner = {"type": "document", "source": {"type": "content", "content": [text("a"), image]}}
    request = converted(messages=[user(inner, image)]).valid
    assert [image.param for image in request.images] == [
        "messages.0.content.0.source.content.1",
        "messages.0.content.1",
    ]


OF_SERVERS: list[tuple[Any, dict[str, Any]]] = [
    (assistant, {"type": "redacted_thinking", "data": "x"}),
    (assistant, {"type": "server_tool_use", "id": "x", "name": "web_search", "input": {}}),
    (assistant, {"type": "web_search_tool_result", "tool_use_id": "x", "content": []}),
    (assistant, {"type": "mcp_tool_use", "id": "x", "name": "y", "server_name": "z", "input": {}}),
    (user, {"type": "code_execution_tool_result", "tool_use_id": "x", "content": {}}),
]


@pytest.mark.parametrize(("turn", "block"), OF_SERVERS)
def test_what_anthropics_servers_wrote_is_left_out_and_named(turn: Any, block: dict[str, Any]) -> None:
    messages = [USER, turn(text("a"), block), USER]
    assert seen(messages) == seen([USER, turn(text("a")), USER])
    assert converted(messages=messages).valid.ignored == (f"messages[].content[{block['type']}]",)
    # With nothing beside it.
    converted(messages=[USER, turn(block), USER])


def test_fields_without_effect_in_blocks() -> None:
    blocks = user(text("a", citations=[{"type": "char_location"}], cache_control={"type": "ephemeral"}, id="b_1"))
    request = converted(messages=[{**blocks, "id": "msg_1"}]).valid
    assert set(request.ignored) == {
        "messages[].id",
        "messages[].content[].id",
        "messages[].content[].citations",
        "messages[].content[].cache_control",
    }


@pytest.mark.parametrize("arguments", ["", '{"city": "Kö', "[1]", '{"a": 1} x', '{"INVALID_JSON": 1', "\ud83d"])
def test_arguments_that_are_no_object_come_back_as_the_text_that_they_were(arguments: str) -> None:
    call = {**CALL, "input": tool_input(arguments)}
    found = seen([USER, assistant(call), USER])[1]["tool_calls"][0]["function"]["arguments"]
    assert found == (arguments.replace("\ud83d", "\ufffd") or {})


@pytest.mark.parametrize("given", [{"INVALID_JSON": 1}, {"INVALID_JSON": "a", "b": 1}])
def test_an_input_that_only_looks_like_such_a_text(given: dict[str, Any]) -> None:
    call = {**CALL, "input": given}
    assert seen([USER, assistant(call), USER])[1]["tool_calls"][0]["function"]["arguments"] == given


def test_a_prefill_may_end_with_white_space_and_follow_thoughts() -> None:
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}
    for blocks, fields in (([text("The ")], {}), ([THOUGHT, text("The ")], thinking)):
        prompt = prompt_of(messages=[USER, assistant(*blocks)], thinks=True, **fields)
        assert prompt.messages is not None
        assert prompt.messages[-1]["content"] == "The "
        assert prompt.chat_template_kwargs["continue_final_message"]


def test_prefill() -> None:
    prompt = prompt_of(messages=[USER, assistant(text("The "), text("answer"))])
    assert prompt.messages == [USER, {"role": "assistant", "content": "The answer"}]
    assert prompt.chat_template_kwargs == {"continue_final_message": True, "add_generation_prompt": False}


def test_arguments_survive_to_the_last_digit() -> None:
    numbers = {"big": 2**64 - 1, "small": 0.1, "nested": {"a": [None, True, "é"]}}
    # What the wire cannot carry as a number is told in the object's text.
    for given in (numbers, {**numbers, "big": 12345678901234567890123}):
        call = {**CALL, "input": given}
        arguments = seen([USER, assistant(call), user(RESULT)])[1]["tool_calls"][0]["function"]["arguments"]
        found = json.loads(arguments) if isinstance(arguments, str) else arguments
        assert json.dumps(found) == json.dumps(given)


@pytest.mark.parametrize(
    ("messages", "fields", "place"),
    [
        ([USER, {"role": "assistant", "content": "a"}], {"output_config": {"format": SCHEMA}}, "output_config.format"),
        (
            [USER, {"role": "assistant", "content": "a"}],
            {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000, "thinks": True},
            "thinking",
        ),
        ([USER], {"system": [{"type": "image"}]}, "system.0"),
        ([USER], {"system": [text("a"), {"type": "text"}]}, "system.1.text"),
        ([USER, user(text("a"), {"type": "document", "source": {}})], {}, "messages.1.content.1.source.type"),
        ([{**USER, "clear_at": "never"}], {}, "messages.0.clear_at"),
        ([{"role": "system", "content": [RESULT]}, USER], {}, "messages.0.content.0"),
        ([{"role": "user", "content": ""}], {}, "messages.0.content"),
        ([assistant()], {}, "messages"),
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
        *((user, {"type": kind}, "") for kind in ("container_upload", "compaction", "x" * 10_000)),
        *((user, {"type": "document", "source": {"type": kind}}, ".source") for kind in ("base64", "url", "file")),
        (user, {"type": "document"}, ".source"),
        (user, {"type": "document", "source": 7}, ".source"),
        (user, document("x", citations={"enabled": True}), ".citations.enabled"),
        (
            user,
            {"type": "document", "source": {"type": "text", "media_type": "text/html", "data": "x"}},
            ".source.media_type",
        ),
        (user, {"type": "document", "source": {"type": "content", "content": [RESULT]}}, ".source.content.0"),
        (assistant, document("x"), ""),
        (user, {"type": "search_result", "title": "t", "source": "s"}, ".content"),
        (user, {"type": "search_result", "title": "t", "source": "s", "content": [{"type": "image"}]}, ".content.0"),
        (user, {**RESULT, "content": [{"type": "server_tool_use"}]}, ".content.0"),
        (user, {"type": "tool_reference", "tool_name": "x"}, ""),
        (user, CALL, ""),
        (user, THOUGHT, ""),
        (user, {"type": "image"}, ".source"),
        (user, {**RESULT, "content": [{"type": "image", "source": {"type": "path"}}]}, ".content.0.source.type"),
        (assistant, {"type": "image", "source": {"type": "url", "url": "https://a/b"}}, ""),
        (user, {**RESULT, "content": [RESULT]}, ".content.0"),
        (user, {**RESULT, "content": [{"type": "tool_reference"}]}, ".content.0.tool_name"),
        (user, {}, ".type"),
        (user, {"type": 7}, ".type"),
        (user, {"type": "text"}, ".text"),
        (user, text("a", what=1), ".what"),
        (user, {"type": "text", "text": 7}, ".text"),
        (user, text("a", citations="x"), ".citations"),
        (assistant, RESULT, ""),
        (assistant, {**CALL, "input": "x"}, ".input"),
        (assistant, {**CALL, "id": ""}, ".id"),
        (assistant, {**CALL, "caller": {"type": "code_execution_20250825"}}, ".caller"),
    ],
)
def test_blocks_that_are_refused(turn: Any, block: dict[str, Any], place: str) -> None:
    assert field_at_fault(messages=[turn(block), USER]) == f"messages.0.content.0{place}"
