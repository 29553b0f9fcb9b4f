"""Anthropic's Messages API as it goes over the wire; its SDK is `clients/anthropic_client.py`."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from openai_bls.launcher.testing import RunningServer
from tests.triton.conftest import ANSWERED, SHORT_CHATS, TOOL_CHATS, Golden
from tests.triton.conversations import QUESTION
from tests.triton.reference import Reference

pytestmark = pytest.mark.triton

PARIS: Any = [{"role": "user", "content": "What's the weather in Paris?"}]
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "Get the current weather in a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "The city"}},
        "required": ["city"],
    },
}
KINDS = ("ping", "message_start", "message_delta", "message_stop")


class Client:
    """Requests to one server; greedy, so that answers can be compared."""

    def __init__(self, server: RunningServer) -> None:
        headers = {"x-api-key": "none", "anthropic-version": "2023-06-01"}
        self.http = httpx.Client(base_url=server.openai_url, headers=headers, timeout=120)

    def post(self, path: str = "/messages", **fields: Any) -> httpx.Response:
        body = {"model": "openai_bls", **fields}
        if path == "/messages":
            body = {"max_tokens": 300, "temperature": 0, **body}
        return self.http.post(path, json=body)

    def create(self, **fields: Any) -> dict[str, Any]:
        response = self.post(**fields)
        assert response.status_code == 200, response.text
        message: dict[str, Any] = response.json()
        return message

    def events(self, **fields: Any) -> list[dict[str, Any]]:
        response = self.post(stream=True, **fields)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        events = []
        for block in response.text.removesuffix("\n\n").split("\n\n"):
            if block.startswith(":"):
                continue
            head, data = block.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            assert head == f"event: {events[-1]['type']}"
        return events

    def stream(self, **fields: Any) -> dict[str, Any]:
        """What a stream adds up to."""
        events = self.events(**fields)
        assert [e["type"] for e in events if e["type"] in KINDS] == list(KINDS[1:2] + KINDS[:1] + KINDS[2:])
        message: dict[str, Any] = events[0]["message"]
        for event in events:
            if event["type"] == "content_block_start":
                message["content"].append({**event["content_block"], "json": ""})
            elif event["type"] == "content_block_delta":
                block, delta = message["content"][event["index"]], event["delta"]
                if delta["type"] == "text_delta":
                    block["text"] += delta["text"]
                else:
                    assert delta["type"] == "input_json_delta"
                    block["json"] += delta["partial_json"]
            elif event["type"] == "message_delta":
                message |= {**event["delta"], "usage": event["usage"]}
        for block in message["content"]:
            arguments = block.pop("json")
            if block["type"] == "tool_use":
                block["input"] = json.loads(arguments)
        return message


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Client:
    return Client(server)


def comparable(message: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from answer to answer: ids, and what was in the cache."""
    usage = message["usage"]
    counts = {
        "input": usage["input_tokens"] + usage["cache_creation_input_tokens"] + usage["cache_read_input_tokens"],
        "output": usage["output_tokens"],
    }
    content = [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]
    return {**message, "id": "", "content": content, "usage": counts}


def request_of(golden: Golden) -> dict[str, Any]:
    """A golden conversation in the form of this API."""
    request: dict[str, Any] = {"messages": []}
    for message in golden.messages or []:
        if message["role"] == "system":
            request["system"] = message["content"]
            continue
        blocks: list[dict[str, Any]] = []
        if message["role"] == "tool":
            block = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
            request["messages"].append({"role": "user", "content": [block]})
            continue
        if message["content"]:
            blocks.append({"type": "text", "text": message["content"]})
        for call in message.get("tool_calls") or []:
            function = call["function"]
            blocks.append(
                {
                    "type": "tool_use",
                    "id": call["id"],
                    "name": function["name"],
                    "input": json.loads(function["arguments"]),
                }
            )
        request["messages"].append({"role": message["role"], "content": blocks})
    if golden.tools is not None:
        functions = [tool["function"] for tool in golden.tools]
        request["tools"] = [
            {("input_schema" if name == "parameters" else name): value for name, value in function.items()}
            for function in functions
        ]
    return request


def test_answers_are_the_models_own(client: Client, reference: Reference) -> None:
    for golden in SHORT_CHATS:
        request = {**request_of(golden), "max_tokens": 1200}
        whole = client.create(**request)
        assert whole["content"] == [{"type": "text", "text": golden.answer}]
        assert (whole["stop_reason"], whole["stop_sequence"]) == ("end_turn", None)
        assert comparable(client.stream(**request)) == comparable(whole)
        counts = {"input": len(reference.prompt_token_ids(golden)), "output": golden.tokens}
        assert comparable(whole)["usage"] == counts


def test_tool_calls(client: Client, reference: Reference) -> None:
    seen = 0
    for golden in TOOL_CHATS:
        parts = [part.split("</tool_call>")[0] for part in golden.answer.split("<tool_call>")[1:]]
        expected = [json.loads(part) for part in parts]
        request = request_of(golden)
        whole = client.create(**request)
        calls = [block for block in whole["content"] if block["type"] == "tool_use"]
        assert [{"name": call["name"], "arguments": call["input"]} for call in calls] == expected
        assert whole["stop_reason"] == ("tool_use" if expected else "end_turn")
        assert all(call["id"].startswith("toolu_") for call in calls)
        assert comparable(client.stream(**request)) == comparable(whole)
        counted = client.post("/messages/count_tokens", **request)
        assert counted.json() == {"input_tokens": len(reference.prompt_token_ids(golden))}
        seen += len(expected)
    assert seen > 0


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_calls_that_must_come(client: Client, choice: dict[str, Any]) -> None:
    """A question that the model answers in words if it may."""
    choice = {**choice, "disable_parallel_tool_use": True}
    message = client.create(messages=QUESTION, tools=[WEATHER], tool_choice=choice)
    (call,) = message["content"]
    assert (call["name"], set(call["input"]), message["stop_reason"]) == ("get_weather", {"city"}, "tool_use")


def test_no_calls(client: Client) -> None:
    message = client.create(messages=PARIS, tools=[WEATHER], tool_choice={"type": "none"}, max_tokens=60)
    assert [block["type"] for block in message["content"]] == ["text"]


def test_prefill(client: Client) -> None:
    beginning = ANSWERED.answer[: ANSWERED.answer.index(" rules")]
    turns = [*QUESTION, {"role": "assistant", "content": beginning}]
    message = client.create(messages=turns)
    assert beginning + message["content"][0]["text"] == ANSWERED.answer
    assert client.post("/messages/count_tokens", messages=turns).json() == {
        "input_tokens": comparable(message)["usage"]["input"]
    }


def test_ends(client: Client) -> None:
    for stops in (["patterns", "fixed rules. A"], ["nowhere", " many "]):
        found = min((stop for stop in stops if stop in ANSWERED.answer), key=ANSWERED.answer.index)
        message = client.create(messages=QUESTION, stop_sequences=stops)
        assert message["content"][0]["text"] == ANSWERED.answer[: ANSWERED.answer.index(found)]
        assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", found)
        assert comparable(client.stream(messages=QUESTION, stop_sequences=stops)) == comparable(message)
    message = client.create(messages=QUESTION, max_tokens=4)
    assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("max_tokens", 4)
    nothing = client.create(messages=QUESTION, max_tokens=0)
    assert (nothing["content"], nothing["stop_reason"], nothing["usage"]["output_tokens"]) == ([], "max_tokens", 0)


@pytest.mark.parametrize(
    ("path", "fields", "status", "told"),
    [
        ("/messages", {"messages": []}, 400, "messages"),
        ("/messages", {"messages": QUESTION, "max_tokens": 10**6}, 400, "context length"),
        ("/messages", {"messages": QUESTION, "stream": True, "model": "claude"}, 404, "claude"),
        ("/messages", {"messages": QUESTION, "tools": [{"type": "web_search_20250305", "name": "w"}]}, 400, "web_sea"),
        ("/messages", {"messages": QUESTION, "output_config": {"effort": "low"}}, 400, "output_config.effort"),
        ("/messages/count_tokens", {"messages": QUESTION, "model": "claude"}, 404, "claude"),
        ("/messages/count_tokens", {"messages": QUESTION, "max_tokens": 1}, 400, "max_tokens"),
    ],
)
def test_errors(client: Client, path: str, fields: dict[str, Any], status: int, told: str) -> None:
    response = client.post(path, **fields)
    assert response.status_code == status
    body = response.json()
    kind = {400: "invalid_request_error", 404: "not_found_error"}[status]
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert told in body["error"]["message"]
    assert body["request_id"] == response.headers["request-id"]
