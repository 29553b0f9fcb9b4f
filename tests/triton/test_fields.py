"""What a request's fields do on /v1 they do on Triton's endpoints: generate, generate_stream and gRPC give the same
answers, with the whole body in `request` and with each field in its own place.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from openai_bls.launcher.testing import RunningServer
from openai_bls.triton_models.tensors import JSON_INPUTS, OPENAI_BLS
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
    "usage": {**CHAT, "stream_options": {"include_usage": True}},
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

REFUSED: dict[str, dict[str, Any]] = {
    "temperature": {**CHAT, "temperature": 9},
    "logit_bias": {**CHAT, "logit_bias": {"x": 1}},
    "structured_outputs.regex": {**CHAT, "structured_outputs": {"regex": "("}},
    "top_logprobs": {**CHAT, "top_logprobs": 2},
    "surprise": {**CHAT, "surprise": 1},
    "tool_choice": {**CHAT, "tool_choice": "required"},
}
"""Field at fault → body."""


def choices_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """What two answers to one request have in common: all but the ids of tool calls."""
    choices: list[dict[str, Any]] = json.loads(json.dumps(answer["choices"]))
    for choice in choices:
        for call in choice.get("message", {}).get("tool_calls", ()):
            del call["id"]
    return choices


def together(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The answer that a stream's chunks add up to."""
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for piece in chunk["choices"]:
            add(choices.setdefault(piece["index"], {"calls": {}, "logprobs": {}, "text": ""}), piece)
    return {"choices": [choice for _, choice in sorted(choices.items())], "usage": usage}


def add(choice: dict[str, Any], piece: dict[str, Any]) -> None:
    """Add a piece to what has come of its choice."""
    delta = piece.get("delta", {})
    choice["text"] += piece.get("text", "") + (delta.get("content") or "")
    choice["finish_reason"] = piece["finish_reason"]
    for call in delta.get("tool_calls", ()):
        known = choice["calls"].setdefault(call["index"], {"name": call["function"].get("name"), "arguments": ""})
        known["arguments"] += call["function"].get("arguments", "")
    for name, values in (piece["logprobs"] or {}).items():
        choice["logprobs"][name] = choice["logprobs"].get(name, []) + (values or [])


def flat(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """A whole answer's choices in the form of `together`."""
    found = []
    for choice in answer["choices"]:
        message = choice.get("message", {})
        calls = {i: call["function"] for i, call in enumerate(message.get("tool_calls", ()))}
        found.append(
            {
                "calls": calls,
                "logprobs": {name: values or [] for name, values in (choice["logprobs"] or {}).items()},
                "text": choice.get("text", message.get("content") or ""),
                "finish_reason": choice["finish_reason"],
            }
        )
    return found


def close(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Equal, but for the last digits of log-probabilities, which a batch's size may change."""
    assert found == nearly(expected)


def nearly(value: Any) -> Any:
    """The same, with numbers that equal those close to them."""
    if isinstance(value, float):
        return pytest.approx(value, abs=1e-3)
    if isinstance(value, dict):
        return {name: nearly(each) for name, each in value.items()}
    if isinstance(value, list):
        return [nearly(each) for each in value]
    return value


def apart(body: dict[str, Any]) -> dict[str, Any]:
    """Each field in its own place: JSON text in the tensors for it, everything else as it is."""
    return {name: json.dumps(value) if name in JSON_INPUTS else value for name, value in body.items()}


def over_grpc(server: RunningServer, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The responses to `body`, with a tensor for each field that has one and a parameter for each of the others."""
    fields = apart(body)
    tensors = [
        triton_client.infer_input(name, value if isinstance(value, list) else [value], "BYTES")
        for name, value in fields.items()
        if name in TENSORS
    ]
    return triton_client.grpc_chat(
        server.grpc_url, tensors, {name: value for name, value in fields.items() if name not in TENSORS}
    )


@pytest.fixture(scope="module")
def on_v1(server: RunningServer) -> dict[str, dict[str, Any]]:
    """The answers of /v1."""
    answers = {}
    with httpx.Client(timeout=60) as client:
        for name, body in BODIES.items():
            path = "completions" if "prompt" in body else "chat/completions"
            sent = {name: value for name, value in body.items() if name != "stream_options"}
            response = client.post(f"{server.openai_url}/{path}", json={"model": "openai_bls", **sent})
            assert response.status_code == 200, response.text
            answers[name] = response.json()
    return answers


@pytest.mark.parametrize("name", list(BODIES))
def test_generate(server: RunningServer, on_v1: dict[str, dict[str, Any]], name: str) -> None:
    body = {field: value for field, value in BODIES[name].items() if field != "stream_options"}
    whole = triton_client.chat(server.http_url, {"request": json.dumps(body)})
    close(choices_of(whole), choices_of(on_v1[name]))
    # The prompt may have been cached meanwhile.
    assert {**whole["usage"], "prompt_tokens_details": None} == {**on_v1[name]["usage"], "prompt_tokens_details": None}
    close(choices_of(triton_client.chat(server.http_url, apart(body))), choices_of(on_v1[name]))


@pytest.mark.parametrize("name", list(BODIES))
def test_streams(server: RunningServer, on_v1: dict[str, dict[str, Any]], name: str) -> None:
    """generate_stream, gRPC and the events of /v1 add up to the whole answer."""
    body = BODIES[name]
    expected = flat(on_v1[name])
    generated = together(triton_client.chat_stream(server.http_url, apart(body)))
    close(generated["choices"], expected)
    close(together(over_grpc(server, {**body, "stream": True}))["choices"], expected)
    path = "completions" if "prompt" in body else "chat/completions"
    request = {"model": "openai_bls", **body, "stream": True}
    response = httpx.post(f"{server.openai_url}/{path}", json=request, timeout=60)
    events = [event.removeprefix("data: ") for event in response.text.split("\n\n") if event]
    assert events.pop() == "[DONE]"
    close(together([json.loads(event) for event in events])["choices"], expected)
    if "stream_options" in body:
        assert generated["usage"]["completion_tokens"] == on_v1[name]["usage"]["completion_tokens"]


@pytest.mark.parametrize("param", list(REFUSED))
def test_refusals(server: RunningServer, param: str) -> None:
    """The same words, code and field everywhere."""
    body = REFUSED[param]
    response = httpx.post(f"{server.openai_url}/chat/completions", json={"model": "openai_bls", **body}, timeout=60)
    assert response.status_code == 400
    expected = response.json()
    assert expected["error"]["param"] == param
    for ask in (triton_client.chat, triton_client.chat_stream):
        with pytest.raises(triton_client.TritonError) as caught:
            ask(server.http_url, {"request": json.dumps(body)})
        assert caught.value.body == expected
    with pytest.raises(triton_client.TritonError) as caught:
        triton_client.grpc_chat(
            server.grpc_url, [triton_client.infer_input("request", [json.dumps(body)], "BYTES")], {}
        )
    assert caught.value.body == expected
