"""The Open Responses specification: the cases of its public suite, held to the specification's types.

Which fields an answer must have stands in its schemas `ResponseResource`, `Message`, `FunctionCall`, `FunctionTool`,
`Usage` and in those of its events.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.pictures import data_uri, picture
from tests.unit.api.responses.responses_support import Client, Place, call_text
from tests.unit.core_support import EOS, Bench, engine_info, until

RESPONSE = {
    *("id", "object", "created_at", "completed_at", "status", "incomplete_details", "model", "previous_response_id"),
    *("instructions", "output", "error", "tools", "tool_choice", "truncation", "parallel_tool_calls", "text", "top_p"),
    *("presence_penalty", "frequency_penalty", "top_logprobs", "temperature", "reasoning", "user", "usage"),
    *("max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "metadata", "safety_identifier"),
    "prompt_cache_key",
}
ITEMS = {
    "message": {"type", "id", "status", "role", "content"},
    "function_call": {"type", "id", "call_id", "name", "arguments", "status"},
    "reasoning": {"type", "id", "summary"},
}
_PART = {"item_id", "output_index", "content_index"}
EVENTS = {
    **{kind: {"response"} for kind in ("created", "in_progress", "completed")},
    **{kind: {"output_index", "item"} for kind in ("output_item.added", "output_item.done")},
    **{kind: {*_PART, "part"} for kind in ("content_part.added", "content_part.done")},
    "output_text.delta": {*_PART, "delta", "logprobs"},
    "output_text.done": {*_PART, "text", "logprobs"},
    "function_call_arguments.delta": {"item_id", "output_index", "delta"},
    "function_call_arguments.done": {"item_id", "output_index", "arguments"},
}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a place.",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}
ASKED = {"input": [{"type": "message", "role": "user", "content": "What is the weather in Oslo?"}], "tools": [WEATHER]}
CALL = call_text("get_weather", '{"location": "Oslo"}')


def conforms(response: dict[str, Any]) -> None:
    """A response as the specification has it."""
    assert set(response) >= RESPONSE
    assert response["object"] == "response"
    for name in ("presence_penalty", "frequency_penalty", "temperature", "top_p"):
        assert isinstance(response[name], int | float)
    for name in ("created_at", "top_logprobs"):
        assert isinstance(response[name], int)
    assert set(response["reasoning"]) >= {"effort", "summary"}
    assert set(response["text"]["format"]) >= {"type"}
    for item in response["output"]:
        assert set(item) >= ITEMS[item["type"]]
    for tool in response["tools"]:
        assert set(tool) >= {"type", "name", "description", "parameters", "strict"}
    if response["usage"] is not None:
        details = {"input_tokens_details", "output_tokens_details"}
        assert set(response["usage"]) >= {"input_tokens", "output_tokens", "total_tokens", *details}
        assert "cached_tokens" in response["usage"]["input_tokens_details"]
        assert "reasoning_tokens" in response["usage"]["output_tokens_details"]


def answered(body: dict[str, Any], *pieces: str) -> dict[str, Any]:
    """A complete answer that conforms, streamed and whole."""
    events = Place().streamed(body, pieces)
    for event in events:
        assert set(event) >= {"type", "sequence_number", *EVENTS[event["type"].removeprefix("response.")]}
    for event in (events[0], events[1], events[-1]):
        conforms(event["response"])
    whole = Place().whole(body, pieces)
    conforms(whole)
    assert whole["status"] == events[-1]["response"]["status"] == "completed"
    assert [item["type"] for item in whole["output"]] == [item["type"] for item in events[-1]["response"]["output"]]
    return whole


def test_a_text() -> None:
    body = {"input": [{"type": "message", "role": "user", "content": "Greet me in two words."}]}
    (item,) = answered(body, "Good ", "day")["output"]
    assert [part["text"] for part in item["content"]] == ["Good day"]


def test_a_system_prompt() -> None:
    roles = ("system", "user")
    answered(
        {"input": [{"type": "message", "role": role, "content": "Speak like a sailor."} for role in roles]}, "Ahoy"
    )


def test_a_call() -> None:
    (item,) = answered(ASKED, *CALL)["output"]
    assert (item["type"], item["name"], item["arguments"]) == ("function_call", "get_weather", '{"location": "Oslo"}')


def test_the_events_of_a_call() -> None:
    found = [event["type"].removeprefix("response.") for event in Place().streamed(ASKED, list(CALL))]
    order = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert [kind for at, kind in enumerate(found[2:-1]) if at == 0 or kind != found[2:-1][at - 1]] == order


def test_several_turns() -> None:
    turns = [("user", "I am Ada."), ("assistant", "Hello, Ada."), ("user", "Who am I?")]
    place = Place()
    place.whole({"input": [{"type": "message", "role": role, "content": text} for role, text in turns]}, ["Ada"])
    assert [(message["role"], message["content"]) for message in place.messages] == turns


@pytest.mark.parametrize("detail", [None, "auto", "low", "high", "original"])
async def test_an_image(detail: str | None) -> None:
    place = Place(Bench(engine_info(input_modalities=("text", "image"), max_images=1)))
    image = {"type": "input_image", "image_url": data_uri(picture())} | ({} if detail is None else {"detail": detail})
    content = [
        {"type": "input_text", "text": "What is it?"},
        {**image, "prompt_cache_breakpoint": {"mode": "explicit"}},
    ]
    client = Client(place)
    asked = asyncio.ensure_future(
        client.send("POST", "/v1/responses", {"input": [{"role": "user", "content": content}]})
    )
    await until(lambda: place.bench.engine.requests or asked.done())
    assert not asked.done(), (await asked).text
    place.bench.engine.deliver(0, "A square.", "stop", stop_token_id=EOS)
    reply = await asked
    assert reply.status == 200, reply.text
    conforms(reply.json())
    assert reply.headers["openai-bls-ignored"] == "input[].content[].prompt_cache_breakpoint"
