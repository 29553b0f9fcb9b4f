"""What Anthropic's SDK, unmodified, makes of a server: run with the server's URL, prints one JSON object.

It runs in an environment of its own (`pip install anthropic`), hence it imports nothing from here.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import anthropic

MODEL = "openai_bls"
QUESTION: Any = [{"role": "user", "content": "What is machine learning?"}]
PARIS: Any = [{"role": "user", "content": "What's the weather in Paris?"}]
WEATHER: Any = {
    "name": "get_weather",
    "description": "Get the current weather in a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "The city"}},
        "required": ["city"],
    },
}
# Newer releases of the SDK have no argument for it.
GREEDY: Any = {"temperature": 0}


def text_of(message: Any) -> str:
    """The text of a message."""
    return "".join(block.text for block in message.content if block.type == "text")


def create(client: anthropic.Anthropic) -> dict[str, Any]:
    """A whole answer."""
    message = client.messages.create(
        model=MODEL, max_tokens=200, messages=QUESTION, system="You are a helpful assistant.", extra_body=GREEDY
    )
    return {
        "text": text_of(message),
        "stop_reason": message.stop_reason,
        "role": message.role,
        "id": message.id,
        "input_tokens": message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0),
        "output_tokens": message.usage.output_tokens,
        "request_id": message._request_id is not None,
    }


def stream(client: anthropic.Anthropic) -> dict[str, Any]:
    """The helper for streams: the text as it comes, and the message that it adds up to."""
    with client.messages.stream(model=MODEL, max_tokens=200, messages=QUESTION, extra_body=GREEDY) as events:
        pieces = list(events.text_stream)
        message = events.get_final_message()
    return {
        "pieces": len(pieces),
        "joined": "".join(pieces),
        "text": text_of(message),
        "stop_reason": message.stop_reason,
        "output_tokens": message.usage.output_tokens,
    }


def raw_events(client: anthropic.Anthropic) -> list[str]:
    """The types of a stream's events, repeated ones once."""
    kinds: list[str] = []
    for event in client.messages.create(model=MODEL, max_tokens=50, messages=QUESTION, stream=True, extra_body=GREEDY):
        if not kinds or kinds[-1] != event.type:
            kinds.append(event.type)
    return kinds


def several(base_url: str) -> list[str]:
    """Streams side by side."""

    async def one(client: anthropic.AsyncAnthropic) -> str:
        async with client.messages.stream(model=MODEL, max_tokens=200, messages=QUESTION, extra_body=GREEDY) as events:
            return text_of(await events.get_final_message())

    async def everyone() -> list[str]:
        async with anthropic.AsyncAnthropic(base_url=base_url, api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(one(client) for _ in range(4)))

    return asyncio.run(everyone())


def stop_sequence(client: anthropic.Anthropic) -> dict[str, Any]:
    """An answer that ends at one of the client's own texts."""
    message = client.messages.create(
        model=MODEL, max_tokens=200, messages=QUESTION, stop_sequences=["zzz", " instead"], extra_body=GREEDY
    )
    return {"text": text_of(message), "stop_reason": message.stop_reason, "stop_sequence": message.stop_sequence}


def tools(client: anthropic.Anthropic, *, streamed: bool) -> dict[str, Any]:
    """A call, its result, and the answer made of it."""
    options: Any = {"model": MODEL, "max_tokens": 200, "tools": [WEATHER], "extra_body": GREEDY}
    if streamed:
        with client.messages.stream(messages=PARIS, **options) as events:
            first = events.get_final_message()
    else:
        first = client.messages.create(messages=PARIS, **options)
    calls = [block for block in first.content if block.type == "tool_use"]
    results: Any = [
        {"type": "tool_result", "tool_use_id": call.id, "content": '{"temperature": 21, "condition": "sunny"}'}
        for call in calls
    ]
    turns: Any = [*PARIS, {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    second = client.messages.create(messages=turns, **options)
    return {
        "stop_reason": first.stop_reason,
        "calls": [{"name": call.name, "input": call.input} for call in calls],
        "answer": text_of(second),
        "answer_stop_reason": second.stop_reason,
    }


def forced(client: anthropic.Anthropic) -> list[Any]:
    """Calls that must come, of any tool and of one, to a question that the model answers in words if it may."""
    found = []
    for kind in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        choice: Any = {**kind, "disable_parallel_tool_use": True}
        options: Any = {"model": MODEL, "max_tokens": 200, "tools": [WEATHER], "extra_body": GREEDY}
        message = client.messages.create(messages=QUESTION, tool_choice=choice, **options)
        (call,) = message.content
        found.append([call.name, list(call.input), message.stop_reason])
    return found


def prefilled(client: anthropic.Anthropic, beginning: str) -> str:
    """The rest of an answer of which the client gives the beginning."""
    turns: Any = [*QUESTION, {"role": "assistant", "content": beginning}]
    return text_of(client.messages.create(model=MODEL, max_tokens=200, messages=turns, extra_body=GREEDY))


def lengths(client: anthropic.Anthropic) -> list[Any]:
    """Where answers end that may have four tokens, and none."""
    messages = [
        client.messages.create(model=MODEL, max_tokens=limit, messages=QUESTION, extra_body=GREEDY) for limit in (4, 0)
    ]
    return [[message.stop_reason, message.usage.output_tokens] for message in messages]


def structured(client: anthropic.Anthropic) -> Any:
    """An answer that fits a JSON schema."""
    schema = {
        "type": "object",
        "properties": {"topic": {"enum": ["computers", "cooking"]}},
        "required": ["topic"],
        "additionalProperties": False,
    }
    wanted = {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
    message = client.messages.create(model=MODEL, max_tokens=100, messages=QUESTION, extra_body={**GREEDY, **wanted})
    return json.loads(text_of(message))


def count_tokens(client: anthropic.Anthropic) -> int:
    """How long the prompt of `create` is."""
    counted = client.messages.count_tokens(model=MODEL, messages=QUESTION, system="You are a helpful assistant.")
    return int(counted.input_tokens)


def errors(client: anthropic.Anthropic) -> dict[str, Any]:
    """The SDK's classes for what goes wrong."""
    bad: dict[str, dict[str, Any]] = {
        "unknown_model": {"model": "claude"},
        "unknown_model_streamed": {"model": "claude", "stream": True},
        "image": {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        "too_long": {"messages": [{"role": "user", "content": "word " * 20_000}]},
    }
    found: dict[str, Any] = {}
    for name, fields in bad.items():
        options: Any = {"model": MODEL, "max_tokens": 10, "messages": QUESTION, **fields}
        try:
            client.messages.create(**options)
            found[name] = None
        except anthropic.APIStatusError as error:
            body: Any = error.body
            found[name] = {
                "class": type(error).__name__,
                "status": error.status_code,
                "type": body["error"]["type"],
                "request_id": error.request_id == body["request_id"],
            }
            if name == "too_long":
                found[name]["message"] = body["error"]["message"]
    return found


def edited(client: anthropic.Anthropic) -> dict[str, Any]:
    """Answers to a conversation of which the server clears a tool's result, by the beta client."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny " * 30}
    turns: Any = [*PARIS, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    none, trigger = {"type": "tool_uses", "value": 0}, {"type": "tool_uses", "value": 0}
    edit = {"type": "clear_tool_uses_20250919", "trigger": trigger, "keep": none}
    options: Any = {"model": MODEL, "messages": turns, "tools": [WEATHER]}
    options["context_management"] = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}, edit]}
    whole = client.beta.messages.create(max_tokens=5, **options)
    with client.beta.messages.stream(max_tokens=5, **options) as events:
        streamed = events.get_final_message()
    counted = client.beta.messages.count_tokens(**options)
    return {
        "whole": whole.context_management.to_dict() if whole.context_management else None,
        "streamed": streamed.context_management.to_dict() if streamed.context_management else None,
        "tokens": counted.input_tokens,
        "original": counted.context_management.original_input_tokens if counted.context_management else None,
    }


def main(base_url: str) -> None:
    """Ask for everything, print what was found."""
    with anthropic.Anthropic(base_url=base_url, api_key="none", max_retries=0, timeout=120) as client:
        found = {
            "version": anthropic.__version__,
            "create": create(client),
            "stream": stream(client),
            "raw_events": raw_events(client),
            "several": several(base_url),
            "stop_sequence": stop_sequence(client),
            "tools": tools(client, streamed=False),
            "tools_streamed": tools(client, streamed=True),
            "forced": forced(client),
            "prefilled": prefilled(client, "Machine learning is"),
            "lengths": lengths(client),
            "structured": structured(client),
            "count_tokens": count_tokens(client),
            "errors": errors(client),
            "edited": edited(client),
            "models": [model.id for model in client.beta.models.list()],
        }
    print(json.dumps(found, ensure_ascii=False))


if __name__ == "__main__":
    main(sys.argv[1])
