"""Messages as gpt-oss's chat template takes them: thoughts under its name, one call per message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

ChatMessage = dict[str, Any]


def template_messages(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The same conversation for a template that reads `thinking`, and of several calls the first.

    A message's calls follow each other, each with its result. What the model said before a call is put to its thoughts:
    the template takes one of them.
    """
    result: list[ChatMessage] = []
    for at, given in enumerate(messages):
        if given["role"] == "tool" and _asked(messages, at) is not None:
            continue  # Has its place behind the call.
        message = dict(given)
        thoughts = message.pop("reasoning_content", "")
        calls = message.get("tool_calls", ())
        if thoughts:
            message["thinking"] = thoughts
        if thoughts and calls and message["content"]:
            message["thinking"] = f"{thoughts}\n{message['content']}"
            message["content"] = ""
        if not calls:
            result.append(message)
            continue
        results = _results(messages, at)
        for number, call in enumerate(calls):
            said = message if number == 0 else {"role": "assistant", "content": ""}
            result.append({**said, "tool_calls": [call]})
            found = next((one for one in results if "id" in call and one.get("tool_call_id") == call["id"]), None)
            found = found or next((one for one in results if "tool_call_id" not in one), None)
            found = found or (results[0] if results and len(results) == len(calls) - number else None)
            if found is not None:
                results.remove(found)
                result.append(found)
        result += results
    return result


def _results(messages: Sequence[ChatMessage], at: int) -> list[ChatMessage]:
    """The tool messages directly behind a message."""
    found: list[ChatMessage] = []
    for message in messages[at + 1 :]:
        if message["role"] != "tool":
            break
        found.append(message)
    return found


def _asked(messages: Sequence[ChatMessage], at: int) -> ChatMessage | None:
    """The message with the calls that the run of tool messages around `at` answers."""
    while at > 0 and messages[at]["role"] == "tool":
        at -= 1
    return messages[at] if messages[at].get("tool_calls") else None
