"""Checks of /v1 and of the pages /health, /version and /metrics on its port."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import openai

from openai_bls.launcher.smoke.check import Check, openai_error
from openai_bls.launcher.smoke.session import (
    GRAMMAR_MAX_TOKENS,
    MAX_TOKENS,
    QUESTION,
    CheckFailedError,
    Session,
    events,
    get,
    message_text,
    must,
    must_equal,
    post,
    shorten,
    streamed_text,
)

CITIES = ["Paris", "Rome"]
WEATHER_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": CITIES}, "warm": {"type": "boolean"}},
    "required": ["city", "warm"],
    "additionalProperties": False,
}
WEATHER = {"name": "get_weather", "parameters": WEATHER_SCHEMA}
UNKNOWN_FIELD = "field_that_does_not_exist"


def _version(session: Session) -> str:
    return "openai_bls {version}, {engine}".format(**json.loads(get(session.root, "/version")))


def _metrics(session: Session) -> None:
    must("openai_bls_requests_total" in get(session.root, "/metrics"), "/metrics lacks openai_bls_requests_total")


def _models(session: Session) -> str:
    names, own = [card.name for card in session.cards], session.engine()
    must(own in names, f"/v1/models lacks {own!r}")
    must_equal(session.v1.models.retrieve(own).id, own, "the model's own card")
    return ", ".join(names)


def _chat(session: Session) -> str:
    answer = session.v1.chat.completions.create(**session.body())
    (choice,) = answer.choices
    text = message_text(choice.message)
    must(text, f"an empty answer to {QUESTION!r}")
    must_equal(text, session.answer, "the same greedy request again")
    usage = answer.usage
    must_equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens, "total_tokens")
    must(choice.finish_reason in ("stop", "length"), f"finish_reason is {choice.finish_reason!r}")
    return shorten(text)


def _chat_streamed(session: Session) -> str:
    body = session.body(stream_options={"include_usage": True})
    found = list(session.v1.chat.completions.create(**body, stream=True))
    must_equal(streamed_text(found), session.answer, "the joined stream")
    must(found[-1].usage.completion_tokens > 0, "the usage counts no token")
    # The client does not miss the end mark; others do.
    events(session.v1, "/chat/completions", session.body(stream=True, max_tokens=1), end="[DONE]")
    return f"{len(found)} chunks"


def _completions(session: Session) -> str:
    body: dict[str, Any] = {"model": session.model, "prompt": QUESTION, "max_tokens": MAX_TOKENS, "temperature": 0}
    text: str = session.v1.completions.create(**body).choices[0].text
    found = events(session.v1, "/completions", {**body, "stream": True}, end="[DONE]")
    must_equal("".join(choice["text"] for chunk in found for choice in chunk["choices"]), text, "the joined stream")
    return shorten(text)


def _logprobs(session: Session) -> str:
    alternatives, note = 2, ""
    try:
        answer = session.v1.chat.completions.create(**session.body(), logprobs=True, top_logprobs=2)
    except openai.BadRequestError as error:
        if error.param != "top_logprobs":
            raise
        alternatives, note = 0, f"; {(openai_error(error.response.text) or {}).get('message')}"
        answer = session.v1.chat.completions.create(**session.body(), logprobs=True)
    entries = answer.choices[0].logprobs.content
    # The end token counts and has no entry.
    tokens = answer.usage.completion_tokens
    must(entries and tokens - len(entries) in (0, 1), f"{len(entries)} entries for {tokens} tokens")
    for entry in entries:
        must(entry.logprob <= 0 and len(entry.top_logprobs) == alternatives, f"a wrong entry: {entry}")
    return f"{len(entries)} tokens{note}"


def _without_thoughts(session: Session, **fields: Any) -> Any:
    body = session.body(max_tokens=GRAMMAR_MAX_TOKENS, **fields)
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    return session.v1.chat.completions.create(**body, extra_body=off).choices[0]


def _json_schema(session: Session) -> str:
    form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": WEATHER_SCHEMA}}
    choice = _without_thoughts(session, response_format=form)
    return check_weather(choice.message.content, choice.finish_reason)


def _forced_tool_call(session: Session) -> str:
    named = {"type": "function", "function": {"name": "get_weather"}}
    choice = _without_thoughts(session, tools=[{"type": "function", "function": WEATHER}], tool_choice=named)
    calls = [call.function for call in choice.message.tool_calls or []]
    must_equal([call.name for call in calls], ["get_weather"], "the functions called")
    return check_weather(calls[0].arguments, choice.finish_reason)


def check_weather(text: str, finish_reason: str) -> str:
    """Raise unless `text` is JSON that is valid by WEATHER_SCHEMA; returns its beginning."""
    try:
        value = json.loads(text)
    except ValueError:
        raise CheckFailedError(f"no JSON (finish_reason {finish_reason}): {shorten(text)}") from None
    valid = isinstance(value, dict) and set(value) == {"city", "warm"} and value["city"] in CITIES
    must(valid and isinstance(value["warm"], bool), f"not valid by the schema: {shorten(text)}")
    return shorten(text)


def _unknown_field(session: Session) -> str:
    body = session.body(session.engine())
    return refused(
        lambda: session.v1.chat.completions.create(**body, extra_body={UNKNOWN_FIELD: 1}), 400, UNKNOWN_FIELD
    )


def _unknown_model(session: Session) -> str:
    body = session.body("no model of this name")
    return refused(lambda: session.v1.chat.completions.create(**body), 404, "model")


def _bad_json(session: Session) -> str:
    headers = {**session.v1.auth_headers, "content-type": "application/json"}
    url = f"{session.target.openai_url}/chat/completions"
    # The openai package sends no broken JSON.
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=session.tls)
    )
    try:
        opener.open(urllib.request.Request(url, b'{"messages": [', headers), timeout=session.target.timeout)
    except urllib.error.HTTPError as error:
        return must_refuse(error.code, error.read().decode(), 400, None)
    except OSError as error:
        raise CheckFailedError(f"{url} does not answer: {error}") from None
    raise CheckFailedError("broken JSON is accepted")


def refused(ask: Callable[[], object], status: int, param: str) -> str:
    """Message of the refusal that `ask` must meet."""
    try:
        ask()
    except openai.APIStatusError as error:
        return must_refuse(error.status_code, error.response.text, status, param)
    raise CheckFailedError(f"a wrong {param} is accepted")


def must_refuse(status: int, body: str, expected: int, param: str | None) -> str:
    """Message of an expected refusal; raises unless it has the HTTP status `expected` and names `param`."""
    error = openai_error(body) or {}
    must(error, f"HTTP {status} without an OpenAI error body")
    must_equal(status, expected, "the HTTP status")
    must_equal(error["param"], param, "param")
    return shorten(str(error["message"]))


def _responses(session: Session) -> str:
    api, body = session.v1.responses, _response_body(session)
    made = api.create(**body)
    must_equal(api.retrieve(made.id).output_text, made.output_text, "the stored response")
    must_equal(len(api.input_items.list(made.id).data), 1, "input_items")
    counted = post(session.v1, "/responses/input_tokens", {"model": session.model, "input": QUESTION})
    must_equal(counted["input_tokens"], made.usage.input_tokens, "input_tokens")
    api.delete(made.id)
    try:
        api.retrieve(made.id)
    except openai.NotFoundError:
        return shorten(made.output_text)
    raise CheckFailedError("GET after DELETE finds the response")


def _responses_streamed(session: Session) -> str:
    found: list[Any] = list(session.v1.responses.create(**_response_body(session), stream=True))
    deltas = [event.delta for event in found if event.type == "response.output_text.delta"]
    must(found[-1].type in ("response.completed", "response.incomplete"), f"the last event is {found[-1].type}")
    must_equal("".join(deltas), found[-1].response.output_text, "the joined stream")
    return f"{len(found)} events"


def _response_body(session: Session) -> dict[str, Any]:
    return {"model": session.model, "input": QUESTION, "max_output_tokens": MAX_TOKENS, "temperature": 0}


def _messages(session: Session) -> str:
    body = session.body()
    made = post(session.v1, "/messages", body)
    text, usage = _all_text(made["content"]), made["usage"]
    counted = post(session.v1, "/messages/count_tokens", {name: body[name] for name in ("model", "messages")})
    cached = usage.get("cache_read_input_tokens", 0) + usage.get("cache_creation_input_tokens", 0)
    must_equal(counted["input_tokens"], usage["input_tokens"] + cached, "input_tokens")
    found = events(session.v1, "/messages", session.body(stream=True))
    deltas = [event["delta"] for event in found if event["type"] == "content_block_delta"]
    must_equal(_all_text(deltas), text, "the joined stream")
    must_equal(found[-1]["type"], "message_stop", "the last event")
    return shorten(text)


def _all_text(blocks: list[dict[str, Any]]) -> str:
    return "".join(block.get("text") or block.get("thinking") or "" for block in blocks)


def _tokenize(session: Session) -> str:
    model = session.engine()
    made = post(session.v1, "/tokenize", {"model": model, "prompt": QUESTION, "add_special_tokens": False})
    text = post(session.v1, "/detokenize", {"model": model, "tokens": made["tokens"]})["prompt"]
    # Some tokenizers put a space before the first word, or before each mark, and some know no capitals.
    must_equal("".join(text.lower().split()), "".join(QUESTION.lower().split()), "the text after detokenize")
    return f"{made['count']} tokens"


CHECKS = (
    Check("GET /health", lambda session: get(session.root, "/health") and None),
    Check("GET /version", _version),
    Check("GET /metrics", _metrics),
    Check("GET /v1/models", _models),
    Check("chat/completions", _chat),
    Check("chat/completions, streamed", _chat_streamed),
    Check("completions, whole and streamed", _completions),
    Check("chat/completions, logprobs", _logprobs, optional=True),
    Check("chat/completions, json_schema", _json_schema, optional=True),
    Check("chat/completions, forced tool call", _forced_tool_call, optional=True),
    Check("bad request: unknown field", _unknown_field),
    Check("bad request: unknown model", _unknown_model),
    Check("bad request: no JSON", _bad_json),
    Check("responses", _responses),
    Check("responses, streamed", _responses_streamed),
    Check("messages, whole and streamed", _messages),
    Check("tokenize, then detokenize", _tokenize),
)
