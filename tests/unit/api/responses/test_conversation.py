"""Which chat the items of a request become."""

from __future__ import annotations

from typing import Any

import pytest

from openai_bls.api.responses.conversation import Conversation
from openai_bls.api.responses.errors import Origin
from openai_bls.api.responses.items import read_input
from openai_bls.api.responses.store import References, ResponseStore
from openai_bls.core.errors import InvalidRequestError

USER = {"role": "user", "content": "hi"}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I say"}]}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "42"}

CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def text(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": t} for t in texts]


def chat(*items: dict[str, Any]) -> Conversation:
    conversation = Conversation()
    conversation.extend(read_input(list(items), References(ResponseStore(), 0).take))
    return conversation


def test_messages_of_every_role() -> None:
    roles = ["system", "developer", "user", "assistant"]
    conversation = chat(*({"role": role, "content": role} for role in roles))
    assert conversation.messages == [{"role": role, "content": text(role)} for role in roles]
    assert conversation.origins == [Origin(f"input[{at}]") for at in range(4)]


def test_parts() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}]
    assert chat({"role": "user", "content": parts}).messages == [{"role": "user", "content": text("a", "b")}]
    refusal = {"type": "refusal", "refusal": "no"}
    assert chat({"role": "assistant", "content": [refusal]}).messages[0]["content"] == [refusal]


def test_instructions_come_first() -> None:
    conversation = Conversation()
    conversation.instruct("be brief")
    conversation.extend(read_input("hi", References(ResponseStore(), 0).take), "input")
    assert conversation.messages == [{"role": "system", "content": "be brief"}, {"role": "user", "content": text("hi")}]
    assert conversation.origins == [Origin("instructions"), Origin("input")]


def test_a_turn_is_one_message() -> None:
    second = {**CALL, "call_id": "c2", "arguments": '{"a": 1}'}
    conversation = chat(USER, THOUGHT, SAID, CALL, second, OUTPUT, {**OUTPUT, "call_id": "c2"}, SAID)
    assert [message["role"] for message in conversation.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    turn = conversation.messages[1]
    assert turn["reasoning_content"] == "hm"
    assert turn["content"] == text("I say")
    assert [call["id"] for call in turn["tool_calls"]] == ["c1", "c2"]
    assert turn["tool_calls"][0] == CHAT_CALL
    assert conversation.origins[1] == Origin("input[1]", ["input[3]", "input[4]"])
    assert conversation.messages[2] == {"role": "tool", "tool_call_id": "c1", "content": "42"}


def test_text_around_calls_is_of_the_same_turn() -> None:
    """Templates want the results right behind the message that has the calls."""
    conversation = chat(CALL, SAID, OUTPUT)
    assert [message["role"] for message in conversation.messages] == ["assistant", "tool"]
    assert conversation.messages[0]["content"] == text("I say")


def test_thoughts_between_calls_are_of_the_same_turn() -> None:
    conversation = chat(THOUGHT, CALL, THOUGHT, {**CALL, "call_id": "c2"})
    (turn,) = conversation.messages
    assert turn["reasoning_content"] == "hmhm"
    assert len(turn["tool_calls"]) == 2


def test_text_ends_a_turn() -> None:
    assert [m["content"] for m in chat(SAID, SAID).messages] == [text("I say"), text("I say")]
    first, second = chat(SAID, THOUGHT, SAID).messages
    assert "reasoning_content" not in first
    assert second["reasoning_content"] == "hm"


def test_reasoning_alone() -> None:
    """As an answer has it that was cut off while the model was thinking."""
    first, second = chat(THOUGHT, USER).messages
    assert first == {"role": "assistant", "content": [], "reasoning_content": "hm"}
    assert second["role"] == "user"


def test_a_summary_stands_in_for_reasoning_that_is_not_there() -> None:
    summary = [{"type": "summary_text", "text": "in short"}]
    (message,) = chat({"type": "reasoning", "id": "rs_1", "summary": summary}).messages
    assert message["reasoning_content"] == "in short"
    (message,) = chat({**THOUGHT, "summary": summary}).messages
    assert message["reasoning_content"] == "hm"
    (message,) = chat({"type": "reasoning", "summary": []}).messages
    assert "reasoning_content" not in message


def test_outputs() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    conversation = chat(CALL, {**OUTPUT, "output": parts, "name": "f"})
    assert conversation.messages[1] == {"role": "tool", "tool_call_id": "c1", "content": text("a", "b"), "name": "f"}


def test_an_output_needs_its_call() -> None:
    with pytest.raises(InvalidRequestError, match="No tool call found") as caught:
        chat(USER, OUTPUT, CALL)
    assert caught.value.param == "input[1].call_id"
