"""The server's own answers, of any text that a model may write, and what clients of each API send back of them."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from openai_bls.api.chat.assembly import assemble
from openai_bls.core.engine_types import PromptRequest
from openai_bls.output.detect import ModelFormats
from openai_bls.transport.ipc.prompts import encode_request
from tests.unit.api.http_support import application
from tests.unit.core_support import EOS, WAIT_S, Answered, Bench, ask, engine_info, events, until

Reason = Literal["stop", "length"]
REASONS: tuple[Reason, ...] = ("stop", "length")
NAME = "f"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "where": {"type": "object"}},
}
USER = {"role": "user", "content": "hi"}
GO_ON = {"role": "user", "content": "Go on."}
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
_TOOLS: dict[str, list[dict[str, Any]]] = {
    CHAT: [{"type": "function", "function": {"name": NAME, "parameters": SCHEMA}}],
    RESPONSES: [{"type": "function", "name": NAME, "parameters": SCHEMA}],
    MESSAGES: [{"name": NAME, "input_schema": SCHEMA}],
}
_REQUIRED = {CHAT: "required", RESPONSES: "required", MESSAGES: {"type": "any"}}


class Text(NamedTuple):
    """What a model writes in answer to a request."""

    pieces: Sequence[str]
    """The text, a delta each."""
    reason: Reason
    forced: bool = False
    """A tool must be called."""


OK = Text(["ok"], "stop")


class OwnAnswers:
    """A server whose model writes what it is told, and its clients."""

    def __init__(self, formats: ModelFormats) -> None:
        self._bench = Bench(engine_info(max_model_len=100_000), formats=formats)
        self._loop = asyncio.new_event_loop()
        self._app = self._loop.run_until_complete(self._made())

    def close(self) -> None:
        self._loop.close()

    def answer(self, path: str, body: dict[str, Any], text: Text = OK) -> Answered:
        """The answer of status 200 to a request."""
        body = {"model": "tiny", "tools": _TOOLS[path], **body}
        if text.forced:
            body["tool_choice"] = _REQUIRED[path]
        answered = self._loop.run_until_complete(self._ask(path, body, text))
        assert answered.status == 200, (answered.body, body)
        return answered

    @property
    def prompt(self) -> PromptRequest:
        """What preprocessing got last, as it comes over the wire."""
        return msgspec.msgpack.decode(encode_request(self._bench.prompts.requests[-1]), type=PromptRequest)

    async def _made(self) -> Any:
        return application(self._bench)

    async def _ask(self, path: str, body: dict[str, Any], text: Text) -> Answered:
        engine = self._bench.engine
        at = len(engine.requests)
        # As most clients write it: what is beyond ASCII, half a surrogate pair too, as escapes.
        task = asyncio.ensure_future(ask(self._app, "POST", path, json.dumps(body).encode()))
        await until(lambda: len(engine.requests) > at or task.done())
        if len(engine.requests) > at:
            for piece in text.pieces[:-1]:
                engine.deliver(at, piece)
            stop = EOS if text.reason == "stop" else None
            engine.deliver(at, text.pieces[-1], text.reason, stop_token_id=stop)
        return await asyncio.wait_for(task, WAIT_S)


class Answer(NamedTuple):
    """An answer as a client of its API keeps it."""

    said: Any
    """What the client sends back: a message, items or blocks."""
    reason: str
    content: str
    calls: list[tuple[str, str]]
    """Names and arguments of its calls, the latter as the client keeps them."""
    reasoning: str = ""
    response_id: str = ""


def chat(server: OwnAnswers, text: Text, *, stream: bool) -> Answer:
    """The answer of chat completions."""
    answered = server.answer(CHAT, {"messages": [USER], "stream": stream}, text)
    whole = answered.json() if not stream else assemble(json.loads(one) for one in events(answered.body)[:-1])
    (choice,) = whole["choices"]
    message = choice["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    return Answer(
        message, choice["finish_reason"], message.get("content") or "", calls, message.get("reasoning_content") or ""
    )


def chat_again(server: OwnAnswers, message: dict[str, Any]) -> list[PromptRequest]:
    """The prompts of requests that have the answer in their conversation."""
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "x"} for call in message.get("tool_calls", ())]
    # Clients that know no reasoning send none back, and some send null for what is not there.
    known = {name: value for name, value in message.items() if not name.startswith("reasoning")}
    bodies: list[list[dict[str, Any]]] = [
        [USER, message, *results, GO_ON],
        [USER, {"content": None, "tool_calls": None, **known}, *results, GO_ON],
        [USER, message, GO_ON],
        [USER, message],
    ]
    return [_prompt(server, CHAT, {"messages": body}) for body in bodies]


def responses(server: OwnAnswers, text: Text, *, stream: bool) -> Answer:
    """The answer of Responses."""
    answered = server.answer(RESPONSES, {"input": "hi", "stream": stream}, text)
    response = answered.json() if not stream else _events(answered.body)[-1]["response"]
    items = response["output"]
    said = [part["text"] for item in items if item["type"] == "message" for part in item["content"]]
    calls = [(item["name"], item["arguments"]) for item in items if item["type"] == "function_call"]
    details = response["incomplete_details"]
    reason = details["reason"] if details is not None else response["status"]
    thought = [part["text"] for item in items if item["type"] == "reasoning" for part in item["content"]]
    return Answer(items, reason, "".join(said), calls, "".join(thought), response["id"])


def responses_again(server: OwnAnswers, answer: Answer) -> list[PromptRequest]:
    """The prompts of requests that have the answer in their conversation, or name it."""
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "x"}
        for item in answer.said
        if item["type"] == "function_call"
    ]
    named = {"previous_response_id": answer.response_id}
    bodies: list[dict[str, Any]] = [
        {"input": [USER, *answer.said, *results, GO_ON]},
        {"input": [USER, *answer.said]},
        {"input": [*results, GO_ON], **named},
        {"input": [GO_ON], **named},
        {**named},
    ]
    return [_prompt(server, RESPONSES, body) for body in bodies]


def messages(server: OwnAnswers, text: Text, *, stream: bool) -> Answer:
    """The answer of Messages."""
    body = {"messages": [USER], "max_tokens": 900, "stream": stream}
    answered = server.answer(MESSAGES, body, text)
    message = _message(_events(answered.body)) if stream else answered.json()
    blocks = message["content"]
    content = "".join(block["text"] for block in blocks if block["type"] == "text")
    calls = [(block["name"], json.dumps(block["input"])) for block in blocks if block["type"] == "tool_use"]
    thought = "".join(block["thinking"] for block in blocks if block["type"] == "thinking")
    return Answer(blocks, message["stop_reason"], content, calls, thought)


def messages_again(server: OwnAnswers, blocks: list[dict[str, Any]]) -> list[PromptRequest]:
    """The prompts of requests that have the answer in their conversation."""
    said = {"role": "assistant", "content": blocks}
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": "x"}
        for block in blocks
        if block["type"] == "tool_use"
    ]
    answered = {"role": "user", "content": [*results, {"type": "text", "text": "Go on."}]}
    bodies: list[list[dict[str, Any]]] = [[USER, said, answered], [USER, said, GO_ON], [USER, said]]
    return [_prompt(server, MESSAGES, {"messages": body, "max_tokens": 9}) for body in bodies]


def _prompt(server: OwnAnswers, path: str, body: dict[str, Any]) -> PromptRequest:
    server.answer(path, body)
    return server.prompt


def _events(body: bytes) -> list[dict[str, Any]]:
    blocks = [block for block in body.decode().split("\n\n") if block and not block.startswith(":")]
    return [json.loads(block.partition("\ndata: ")[2]) for block in blocks]


def _message(stream: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that the events add up to, as an SDK has it."""
    message: dict[str, Any] = {}
    pieces: list[str] = []
    for event in stream:
        kind = event["type"]
        if kind == "message_start":
            message = event["message"]
        elif kind == "content_block_start":
            message["content"].append(event["content_block"])
            pieces = []
        elif kind == "content_block_delta":
            delta = event["delta"]
            pieces.append(delta.get("text") or delta.get("thinking") or delta.get("partial_json") or "")
        elif kind == "content_block_stop":
            block, text = message["content"][-1], "".join(pieces)
            block["input" if block["type"] == "tool_use" else block["type"]] = (
                _input(text) if block["type"] == "tool_use" else text
            )
        elif kind == "message_delta":
            message |= event["delta"]
    return message


def _input(text: str) -> dict[str, Any]:
    """The input of a call as clients parse it and send it again."""

    def no_number(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    try:
        value = json.loads(text, parse_constant=no_number)
    except (ValueError, RecursionError):
        value = None
    return _sendable(value) if isinstance(value, dict) else {"INVALID_JSON": text}


def _sendable(value: Any) -> Any:
    """A value as JSON has it: a number beyond a double is null, as JavaScript writes infinity."""
    if isinstance(value, dict):
        return {name: _sendable(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_sendable(one) for one in value]
    return None if isinstance(value, float) and math.isinf(value) else value
