"""Lists of a request that are looked up in one another: in time that goes by their lengths, not by the product."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from openai_bls.api.chat.tools import ArgumentRoom, template_arguments
from openai_bls.api.chat.validation import parse_object
from openai_bls.api.common.fields import IgnoredFields
from openai_bls.api.messages.context_edits import clear, parsed_edits
from openai_bls.api.messages.context_schema import ContextManagement
from openai_bls.api.messages.schema import Message
from openai_bls.api.messages.turns import chat_messages
from openai_bls.api.responses.parsing import parse_create
from openai_bls.api.responses.store import References, ResponseStore

MOST_S = 5.0
"""CPU time, on a machine that is slow or traced. Each took from ten seconds to minutes."""
MANY = 20_000


def _chat_choice() -> None:
    tools = [{"type": "function", "function": {"name": f"f{at}"}} for at in range(5000)]
    named = [{"type": "function", "function": {"name": f"f{at % 5000}"}} for at in range(MANY)]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": named}}
    body = {"messages": [{"role": "user", "content": "a"}], "tools": tools, "tool_choice": choice}
    parse_object("chat.completions", body)


def _response_choice(choice: dict[str, Any]) -> None:
    members = [{"type": "function", "name": f"f{at}"} for at in range(5000)]
    tools = [{"type": "namespace", "name": "n", "description": "d", "tools": members}]
    body = {
        "input": "a",
        "tools": tools,
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [choice] * MANY},
    }
    parse_create(json.dumps(body).encode(), References(ResponseStore(), 1))


def _namespaces() -> None:
    _response_choice({"type": "namespace", "name": "n"})


def _names_of_any_namespace() -> None:
    _response_choice({"type": "function", "name": "f4999"})


def _messages() -> list[Message]:
    return [
        message
        for at in range(2000)
        for message in (
            Message("assistant", [{"type": "tool_use", "id": f"{at}", "name": "f", "input": {}}]),
            Message("user", [{"type": "tool_result", "tool_use_id": f"{at}", "content": "a"}]),
        )
    ]


def _tool_inputs() -> None:
    edit = {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "tool_uses", "value": 0},
        "keep": {"type": "tool_uses", "value": 0},
        "clear_tool_inputs": [f"g{at}" for at in range(100_000)],
    }
    (parsed,) = parsed_edits(msgspec.convert({"edits": [edit]}, ContextManagement))
    assert clear(parsed, _messages()).number == 2000


def _messages_for_one_turn() -> None:
    over = [Message("system", "a", clear_at="next_user_message") for _ in range(MANY)]
    chat_messages(None, [Message("user", "a"), *over], IgnoredFields())


@pytest.mark.parametrize(
    "work", [_chat_choice, _namespaces, _names_of_any_namespace, _tool_inputs, _messages_for_one_turn]
)
def test_long_lists_are_read_in_little_time(work: Callable[[], None]) -> None:
    begun = time.thread_time()
    work()
    assert time.thread_time() - begun < MOST_S


def test_arguments_of_all_calls_have_room_together() -> None:
    room, text = ArgumentRoom(), json.dumps({"a": "x" * (1 << 20)})
    found = [template_arguments(text, room) for _ in range(5)]
    assert [isinstance(one, dict) for one in found] == [True] * 3 + [False] * 2
    assert found[-1] == text
