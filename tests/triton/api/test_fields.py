"""What a request's fields do on /v1 they do on Triton's endpoints: generate, generate_stream and gRPC give the same
answers, with the whole body in `request` and with each field in its own place.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from openai_bls.launcher.testing import RunningServer
from openai_bls.triton_models.tensors.models import JSON_INPUTS, OPENAI_BLS
from tests.triton import triton_client
from tests.triton.conversations import QUESTION, WEATHER

pytestmark = pytest.mark.triton

TENSORS = {tensor.name for tensor in OPENAI_BLS.inputs}
EMOJI = [{"role": "user", "content": "Say hi with an emoji 🎉"}]
FRANCE = {
    "type": "object",
    "properties": {"country": {"type": "string"}, "capital": {"enum": ["Paris", "Rome"]}},
    "required": ["country", "capital"],
    "additionalProperties": False,
}
CHAT: dict[str, Any] = {"messages": QUESTION, "temperature": 0, "max_tokens": 30}
TEXT: dict[str, Any] = {"prompt": "The sea", "temperature": 0, "max_tokens": 30}

BODIES: dict[str, dict[str, Any]] = {
    "logprobs": {**CHAT, "messages": EMOJI, "logprobs": True, "top_logprobs": 3},
    "completion_logprobs": {**TEXT, "prompt": "🎉 Party time!", "logprobs": 2},
    "echo_logprobs": {**TEXT, "logprobs": 1, "echo": True},
    "echo_alone": {**TEXT, "max_tokens": 0, "logprobs": 1, "echo": True},
    "penalties": {**CHAT, "presence_penalty": 1.5, "frequency_penalty": 2, "repetition_penalty": 1.3},
    "logit_bias": {**CHAT, "logit_bias": {"100": 12, "5": -100}},
    "min_tokens_and_bad_words": {**CHAT, "min_tokens": 30, "bad_words": ["computers", "data"]},
    "seed": {**TEXT, "temperature": 1.5, "top_p": 0.9, "top_k": 50, "min_p": 0.01, "seed": 12, "n": 2},
    "stops": {**CHAT, "stop": ["patterns", "rules"], "include_stop_str_in_output": True},
    "stop_token_ids": {**CHAT, "stop_token_ids": [100, 101, 102, 103]},
    "json_object": {**CHAT, "response_format": {"type": "json_object"}, "max_tokens": 60},
    "json_schema": {
        **CHAT,
        "response_format": {"type": "json_schema", "json_schema": {"name": "capital", "schema": FRANCE}},
    },
    "structured_outputs": {**CHAT, "structured_outputs": {"regex": "[a-f]{3}-[0-9]{2}"}, "n": 2, "seed": 1},
    "guided_choice": {**CHAT, "guided_choice": ["yes", "no"]},
    "guided_regex": {**TEXT, "guided_regex": "(very )?(salty|blue)"},
    "tools_required": {**CHAT, "tools": [WEATHER], "tool_choice": "required"},
    "tool_named": {
        **CHAT,
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "parallel_tool_calls": False,
    },
    "truncated": {**TEXT, "prompt": "one two three four five", "truncate_prompt_tokens": 3},
}


def together(pieces: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The choices of a whole answer, or of a stream's chunks, in one form and without the ids of tool calls."""
    choices: dict[int, dict[str, Any]] = {}
    for piece in [choice for answer in pieces for choice in answer["choices"]]:
        choice = choices.setdefault(piece["index"], {"calls": {}, "logprobs": {}, "text": ""})
        delta = piece.get("delta") or piece.get("message") or {}
        choice["text"] += piece.get("text", "") + (delta.get("content") or "")
        choice["finish_reason"] = piece["finish_reason"]
        for number, call in enumerate(delta.get("tool_calls", ())):
            name, arguments = call["function"].get("name"), call["function"].get("arguments", "")
            known = choice["calls"].setdefault(call.get("index", number), {"name": name, "arguments": ""})
            known["arguments"] += arguments
        for name, values in (piece["logprobs"] or {}).items():
            choice["logprobs"][name] = choice["logprobs"].get(name, []) + (values or [])
    return [choice for _, choice in sorted(choices.items())]


def nearly(value: Any) -> Any:
    """Equal but for the last digits of log-probabilities, which a batch's size may change."""
    if isinstance(value, float):
        return pytest.approx(value, abs=1e-3)
    if isinstance(value, dict):
        return {name: nearly(each) for name, each in value.items()}
    return [nearly(each) for each in value] if isinstance(value, list) else value


def on_v1(server: RunningServer, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The answer, or the chunks of a stream."""
    path = "completions" if "prompt" in body else "chat/completions"
    response = httpx.post(f"{server.openai_url}/{path}", json={"model": "openai_bls", **body}, timeout=60)
    assert response.status_code == 200, response.text
    if "stream" not in body:
        return [response.json()]
    events = [event.removeprefix("data: ") for event in response.text.split("\n\n") if event]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


def over_grpc(server: RunningServer, fields: dict[str, Any]) -> list[dict[str, Any]]:
    """With a tensor for each field that has one and a parameter for each of the others."""
    tensors = [
        triton_client.infer_input(name, value if isinstance(value, list) else [value], "BYTES")
        for name, value in fields.items()
        if name in TENSORS
    ]
    parameters = {name: value for name, value in fields.items() if name not in TENSORS}
    return triton_client.grpc_chat(server.grpc_url, tensors, parameters)


@pytest.mark.parametrize("name", BODIES)
def test_every_path_gives_the_same(server: RunningServer, name: str) -> None:
    body = BODIES[name]
    # Each field in its own place: JSON text in the tensors for it, everything else as it is.
    apart = {field: json.dumps(value) if field in JSON_INPUTS else value for field, value in body.items()}
    (answer,) = on_v1(server, body)
    expected = nearly(together([answer]))
    assert together([triton_client.chat(server.http_url, {"request": json.dumps(body)})]) == expected
    assert together([triton_client.chat(server.http_url, apart)]) == expected
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    generated = triton_client.chat_stream(
        server.http_url, {**apart, **usage, "stream_options": '{"include_usage":true}'}
    )
    for chunks in (generated, over_grpc(server, {**apart, "stream": True}), on_v1(server, {**body, **usage})):
        assert together(chunks) == expected
    assert generated[-1]["usage"]["completion_tokens"] == answer["usage"]["completion_tokens"]
