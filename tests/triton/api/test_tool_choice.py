"""Tool calls that must come, may come or must not, on /v1 with the official SDK."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pytest

from tests.triton.conversations import WEATHER

pytestmark = pytest.mark.triton

# With what the model never saw, so that only the grammar can make the arguments fit.
PAINT: Any = {
    "type": "function",
    "function": {
        "name": "paint",
        "description": "Paint a wall",
        "parameters": {
            "type": "object",
            "properties": {
                "color": {"enum": ["red", "blue"]},
                "coats": {"type": "integer", "minimum": 1, "maximum": 3},
                "rooms": {"type": "array", "items": {"enum": ["hall", "attic"]}, "minItems": 1, "maxItems": 2},
            },
            "required": ["color", "coats", "rooms"],
            "additionalProperties": False,
        },
    },
}
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in (WEATHER, PAINT)}
PARIS: Any = [{"role": "user", "content": "What's the weather in Paris?"}]
TWO: Any = [{"role": "user", "content": "What's the weather in Paris and Tokyo?"}]
JOKE: Any = [{"role": "user", "content": "Tell me a joke."}]
NAMED: Any = {"type": "function", "function": {"name": "paint"}}


def check_calls_that_must_come(client: openai.OpenAI, **options: Any) -> None:
    """Required, and of one name."""
    required: Any = {"tools": [WEATHER, PAINT], "tool_choice": "required", **options}
    calls, content, reason = both_ways(client, JOKE, **required)
    assert calls
    assert (content, reason) == (None, "tool_calls")
    ((name, _),), content, reason = both_ways(client, PARIS, tools=[WEATHER, PAINT], tool_choice=NAMED)
    assert (name, content, reason) == ("paint", None, "stop")


def both_ways(client: openai.OpenAI, messages: Any, **options: Any) -> tuple[list[tuple[str, str]], str | None, str]:
    """(name, arguments) of the calls, the content and the finish_reason; streamed they are the same."""
    given: dict[str, Any] = {
        "model": "openai_bls",
        "messages": messages,
        "temperature": 0,
        "max_tokens": 200,
        **options,
    }
    choice = client.chat.completions.create(**given).choices[0]
    calls: list[Any] = list(choice.message.tool_calls or [])
    found = [(call.function.name, call.function.arguments) for call in calls]
    assert len({call.id for call in calls}) == len(calls)

    pieces: dict[int, dict[str, Any]] = {}
    text, reason = "", ""
    stream: Any = client.chat.completions.create(stream=True, **given)
    for chunk in stream:
        delta = chunk.choices[0].delta
        text += delta.content or ""
        reason = chunk.choices[0].finish_reason or reason
        for piece in delta.tool_calls or []:
            if piece.index not in pieces:
                # The name and the id come whole, once, with the first piece.
                assert piece.function.name
                assert piece.id
                pieces[piece.index] = {"name": piece.function.name, "arguments": ""}
            else:
                assert piece.id is None
                assert piece.function.name is None
            pieces[piece.index]["arguments"] += piece.function.arguments or ""
    assert [(piece["name"], piece["arguments"]) for _, piece in sorted(pieces.items())] == found
    assert (text or None) == (choice.message.content or None)
    assert reason == choice.finish_reason
    for name, arguments in found:
        jsonschema.validate(json.loads(arguments), SCHEMAS[name])
    return found, choice.message.content, choice.finish_reason


def test_calls_that_must_come_or_fit(client: openai.OpenAI) -> None:
    """Required, of one name, and strict ones where the model likes."""
    check_calls_that_must_come(client)
    strict: Any = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    assert both_ways(client, PARIS, tools=[strict])[0] == [("get_weather", '{"city": "Paris"}')]
    calls, content, reason = both_ways(client, JOKE, tools=[strict], tool_choice="auto")
    assert calls == []
    assert content
    assert reason == "stop"


def test_allowed_tools(client: openai.OpenAI) -> None:
    tools = [WEATHER, PAINT]
    required, auto = (
        {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [NAMED]}} for mode in ("required", "auto")
    )
    calls, _, reason = both_ways(client, PARIS, tools=tools, tool_choice=required)
    assert {name for name, _ in calls} == {"paint"}
    assert reason == "tool_calls"
    # The model would call the other one, which it may not.
    calls, _, _ = both_ways(client, PARIS, tools=tools, tool_choice=auto)
    assert {name for name, _ in calls} <= {"paint"}


def test_none(client: openai.OpenAI) -> None:
    calls, content, _ = both_ways(client, PARIS, tools=[WEATHER], tool_choice="none")
    assert calls == []
    assert content


def test_one_call_or_several(client: openai.OpenAI) -> None:
    calls, _, _ = both_ways(client, TWO, tools=[WEATHER])
    assert [json.loads(arguments)["city"] for _, arguments in calls] == ["Paris", "Tokyo"]
    for choice in ("auto", "required"):
        calls, _, reason = both_ways(client, TWO, tools=[WEATHER], tool_choice=choice, parallel_tool_calls=False)
        assert [json.loads(arguments)["city"] for _, arguments in calls] == ["Paris"]
        assert reason == "tool_calls"


def test_results_are_told(client: openai.OpenAI) -> None:
    """Two calls, their results fed back in the other order, and an answer made of them."""
    options: dict[str, Any] = {"model": "openai_bls", "temperature": 0, "max_tokens": 100, "tools": [WEATHER]}
    first = client.chat.completions.create(messages=TWO, **options).choices[0].message
    paris, tokyo = first.tool_calls or []
    messages = [
        *TWO,
        first.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": tokyo.id, "content": '{"temperature": 9, "condition": "rainy"}'},
        {"role": "tool", "tool_call_id": paris.id, "content": '{"temperature": 21, "condition": "sunny"}'},
    ]
    last = client.chat.completions.create(messages=messages, **options).choices[0]
    assert last.finish_reason == "stop"
    assert "21" in (last.message.content or "")
