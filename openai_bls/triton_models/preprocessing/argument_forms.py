"""Forms of tool-call arguments for chat templates: as they are, as objects for those that go through the members, and
as JSON text for those that join strings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

ChatMessage = dict[str, Any]

INVALID = "INVALID_JSON"
"""The one member of the object that stands for arguments that are none; /v1/messages has it in `tool_use` blocks."""


def forms(messages: Sequence[ChatMessage]) -> Iterator[Sequence[ChatMessage]]:
    """The conversation as it is, then in the other forms that its calls' arguments can have.

    Args:
        messages: messages whose calls have an object or a text as arguments.
    """
    yield messages
    kinds = {type(call["function"]["arguments"]) for message in messages for call in message.get("tool_calls") or ()}
    if str in kinds:
        yield _changed(messages, lambda given: {INVALID: given} if isinstance(given, str) else given)
    if dict in kinds:
        yield _changed(
            messages, lambda given: given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        )


def _changed(messages: Sequence[ChatMessage], change: Callable[[Any], Any]) -> list[ChatMessage]:
    return [
        {**message, "tool_calls": [_with_arguments(call, change) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def _with_arguments(call: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": change(function["arguments"])}}
