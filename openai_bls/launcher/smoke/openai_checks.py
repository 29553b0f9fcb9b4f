"""Checks of OpenAI's chat and completions on /v1, and of what the server says of itself there."""

from __future__ import annotations

import json
from typing import Any

from openai_bls.launcher.smoke.client import accepted, chunks, openai_error
from openai_bls.launcher.smoke.outcome import Check, CheckFailedError
from openai_bls.launcher.smoke.session import (
    GRAMMAR_MAX_TOKENS,
    MAX_TOKENS,
    QUESTION,
    Session,
    message_text,
    must_equal,
    streamed_text,
)

CITIES = ["Paris", "Rome"]
WEATHER_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": CITIES}, "warm": {"type": "boolean"}},
    "required": ["city", "warm"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER_SCHEMA}}
UNKNOWN_FIELD = "field_that_does_not_exist"


def health(session: Session) -> None:
    """GET /health."""
    session.root.get("/health")


def version(session: Session) -> str:
    """GET /version."""
    said = session.root.get("/version").json()
    return f"openai_bls {said['version']}, {said['engine']}"


def metrics(session: Session) -> None:
    """GET /metrics of /v1's port."""
    must_contain(session.root.get("/metrics").body.decode(), "openai_bls_requests_total", "/metrics")


def models(session: Session) -> str:
    """GET /v1/models and /v1/models/{id}."""
    names = [card["id"] for card in session.v1.get("/models").json()["data"]]
    must_contain(names, session.model, "/v1/models")
    must_equal(session.v1.get(f"/models/{session.model}").json()["id"], session.model, "the model's own card")
    return ", ".join(names)


def chat(session: Session) -> str:
    """A whole chat completion."""
    answer = session.v1.post("/chat/completions", session.body())
    (choice,) = answer["choices"]
    text = message_text(choice["message"])
    if not text:
        raise CheckFailedError(f"an empty answer to {QUESTION!r}")
    must_equal(text, session.answer, "the same greedy request again")
    usage = answer["usage"]
    must_equal(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"], "total_tokens")
    must_contain(("stop", "length"), choice["finish_reason"], "finish_reason")
    return shorten(text)


def chat_streamed(session: Session) -> str:
    """The same streamed: its pieces are the whole answer."""
    body = session.body(stream=True, stream_options={"include_usage": True})
    found = chunks(session.v1.events("/chat/completions", body), end="[DONE]")
    must_equal(streamed_text(found), session.answer, "the joined stream")
    if found[-1]["usage"]["completion_tokens"] < 1:
        raise CheckFailedError("the usage counts no token")
    return f"{len(found)} chunks"


def completions(session: Session) -> str:
    """A completion, whole and streamed."""
    body = {"model": session.model, "prompt": QUESTION, "max_tokens": MAX_TOKENS, "temperature": 0}
    text = session.v1.post("/completions", body)["choices"][0]["text"]
    found = chunks(session.v1.events("/completions", {**body, "stream": True}), end="[DONE]")
    must_equal("".join(choice["text"] for chunk in found for choice in chunk["choices"]), text, "the joined stream")
    return shorten(text)


def logprobs(session: Session) -> str:
    """Log-probabilities of a chat completion, with alternatives where the engine gives these."""
    reply = session.v1.ask("POST", "/chat/completions", session.body(logprobs=True, top_logprobs=2))
    error = openai_error(reply.body)
    alternatives, note = 2, ""
    if reply.status == 400 and error is not None and error.get("param") == "top_logprobs":
        alternatives, note = 0, f"; {error.get('message')}"
        reply = session.v1.ask("POST", "/chat/completions", session.body(logprobs=True))
    answer = accepted(reply).json()
    entries = answer["choices"][0]["logprobs"]["content"]
    # The end token counts and has no entry.
    missing = answer["usage"]["completion_tokens"] - len(entries)
    if not entries or missing not in (0, 1):
        raise CheckFailedError(f"{len(entries)} entries for {answer['usage']['completion_tokens']} tokens")
    for entry in entries:
        if entry["logprob"] > 0 or len(entry["top_logprobs"]) != alternatives:
            raise CheckFailedError(f"a wrong entry: {entry}")
    return f"{len(entries)} tokens{note}"


def json_schema(session: Session) -> str:
    """Structured output: JSON that is valid by a schema."""
    form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": WEATHER_SCHEMA}}
    answer = session.v1.post("/chat/completions", _unthinking(session, response_format=form))
    text = answer["choices"][0]["message"]["content"]
    check_weather(text, answer["choices"][0]["finish_reason"])
    return shorten(text)


def forced_tool_call(session: Session) -> str:
    """A tool that the request names is called, with arguments by its schema."""
    named = {"type": "function", "function": {"name": "get_weather"}}
    answer = session.v1.post("/chat/completions", _unthinking(session, tools=[TOOL], tool_choice=named))
    (choice,) = answer["choices"]
    calls = choice["message"].get("tool_calls") or []
    must_equal([call["function"]["name"] for call in calls], ["get_weather"], "the functions called")
    check_weather(calls[0]["function"]["arguments"], choice["finish_reason"])
    return shorten(calls[0]["function"]["arguments"])


def bad_field(session: Session) -> str:
    """A field that does not exist is a 400 that names it."""
    reply = session.v1.ask("POST", "/chat/completions", session.body(**{UNKNOWN_FIELD: 1}))
    return refused(reply.status, reply.body, 400, UNKNOWN_FIELD)


def bad_model(session: Session) -> str:
    """A model that is not served is a 404."""
    reply = session.v1.ask("POST", "/chat/completions", {**session.body(), "model": "no model of this name"})
    return refused(reply.status, reply.body, 404, "model")


def bad_json(session: Session) -> str:
    """A body that is no JSON is a 400."""
    reply = session.v1.ask("POST", "/chat/completions", b'{"messages": [')
    return refused(reply.status, reply.body, 400, None)


def refused(status: int, body: bytes, expected: int, param: str | None) -> str:
    """What an expected refusal says."""
    error = openai_error(body)
    if error is None:
        raise CheckFailedError(f"HTTP {status} without an OpenAI error body")
    must_equal(status, expected, "the HTTP status")
    must_equal(error["param"], param, "param")
    return shorten(str(error["message"]))


def check_weather(text: str, finish_reason: str) -> None:
    """Raise unless `text` is JSON that is valid by WEATHER_SCHEMA."""
    try:
        value = json.loads(text)
    except ValueError:
        raise CheckFailedError(f"no JSON (finish_reason {finish_reason}): {shorten(text)}") from None
    keys = isinstance(value, dict) and set(value) == {"city", "warm"}
    if not keys or value["city"] not in CITIES or not isinstance(value["warm"], bool):
        raise CheckFailedError(f"not valid by the schema: {shorten(text)}")


def must_contain(whole: Any, part: Any, what: str) -> None:
    """Raise unless `part` is in `whole`."""
    if part not in whole:
        raise CheckFailedError(f"{what} lacks {part!r}" if isinstance(whole, (str, list)) else f"{what} is {part!r}")


def shorten(text: str) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}..."


def _unthinking(session: Session, **fields: Any) -> dict[str, Any]:
    return session.body(max_tokens=GRAMMAR_MAX_TOKENS, chat_template_kwargs={"enable_thinking": False}, **fields)


CHECKS = (
    Check("GET /health", health),
    Check("GET /version", version),
    Check("GET /metrics", metrics),
    Check("GET /v1/models", models),
    Check("chat/completions", chat),
    Check("chat/completions, streamed", chat_streamed),
    Check("completions, whole and streamed", completions),
    Check("chat/completions, logprobs", logprobs, optional=True),
    Check("chat/completions, json_schema", json_schema, optional=True),
    Check("chat/completions, forced tool call", forced_tool_call, optional=True),
    Check("bad request: unknown field", bad_field),
    Check("bad request: unknown model", bad_model),
    Check("bad request: no JSON", bad_json),
)
