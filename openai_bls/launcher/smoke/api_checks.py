"""Checks of the other endpoints of /v1: Responses, Messages, embeddings, tokenize and detokenize."""

from __future__ import annotations

from typing import Any

from openai_bls.launcher.smoke.client import chunks
from openai_bls.launcher.smoke.openai_checks import shorten
from openai_bls.launcher.smoke.outcome import Check, CheckFailedError
from openai_bls.launcher.smoke.session import MAX_TOKENS, QUESTION, Session, must_equal


def responses(session: Session) -> str:
    """OpenAI's Responses: created, read, its input listed and counted, deleted."""
    made = session.v1.post("/responses", _response_body(session))
    text = _output_text(made)
    identity = made["id"]
    must_equal(_output_text(session.v1.get(f"/responses/{identity}").json()), text, "the stored response")
    items = session.v1.get(f"/responses/{identity}/input_items").json()["data"]
    must_equal(len(items), 1, "input_items")
    counted = session.v1.post("/responses/input_tokens", {"model": session.model, "input": QUESTION})
    must_equal(counted["input_tokens"], made["usage"]["input_tokens"], "input_tokens")
    must_equal(session.v1.ask("DELETE", f"/responses/{identity}").status, 200, "DELETE")
    must_equal(session.v1.ask("GET", f"/responses/{identity}").status, 404, "GET after DELETE")
    return shorten(text)


def responses_streamed(session: Session) -> str:
    """The same streamed: its pieces are the text of the response that ends it."""
    found = chunks(session.v1.events("/responses", {**_response_body(session), "stream": True}))
    deltas = [event["delta"] for event in found if event["type"] == "response.output_text.delta"]
    if found[-1]["type"] not in ("response.completed", "response.incomplete"):
        raise CheckFailedError(f"the stream ends with {found[-1]['type']}")
    must_equal("".join(deltas), _output_text(found[-1]["response"]), "the joined stream")
    return f"{len(found)} events"


def messages(session: Session) -> str:
    """Anthropic's Messages, whole and streamed."""
    body = _message_body(session)
    text = _blocks_text(session.v1.post("/messages", body)["content"])
    found = chunks(session.v1.events("/messages", {**body, "stream": True}))
    deltas = [event["delta"] for event in found if event["type"] == "content_block_delta"]
    must_equal("".join(_delta_text(delta) for delta in deltas), text, "the joined stream")
    must_equal(found[-1]["type"], "message_stop", "the last event")
    return shorten(text)


def count_tokens(session: Session) -> str:
    """Anthropic's count_tokens: what the message itself then counts."""
    body = _message_body(session)
    counted = session.v1.post("/messages/count_tokens", {name: body[name] for name in ("model", "messages")})
    usage = session.v1.post("/messages", {**body, "max_tokens": 1})["usage"]
    read = usage.get("cache_read_input_tokens", 0) + usage.get("cache_creation_input_tokens", 0)
    must_equal(counted["input_tokens"], usage["input_tokens"] + read, "input_tokens")
    return f"{counted['input_tokens']} tokens"


def embeddings(session: Session) -> str:
    """Embeddings of two texts."""
    data = session.v1.post("/embeddings", {"model": session.model, "input": [QUESTION, "Bonjour"]})["data"]
    first, second = (item["embedding"] for item in data)
    if not first or len(first) != len(second) or first == second:
        raise CheckFailedError(f"embeddings of {len(first)} and {len(second)} numbers, equal: {first == second}")
    return f"{len(first)} numbers"


def tokenize(session: Session) -> str:
    """A text to tokens and back."""
    body = {"model": session.model, "prompt": QUESTION, "add_special_tokens": False}
    made = session.v1.post("/tokenize", body)
    must_equal(made["count"], len(made["tokens"]), "count")
    back = session.v1.post("/detokenize", {"model": session.model, "tokens": made["tokens"]})
    # Some tokenizers put a space before the first word.
    must_equal(back["prompt"].strip(), QUESTION, "the text after detokenize")
    return f"{made['count']} tokens"


def _response_body(session: Session) -> dict[str, Any]:
    return {"model": session.model, "input": QUESTION, "max_output_tokens": MAX_TOKENS, "temperature": 0}


def _message_body(session: Session) -> dict[str, Any]:
    return session.body()


def _output_text(response: dict[str, Any]) -> str:
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts if part["type"] == "output_text")


def _blocks_text(blocks: list[dict[str, Any]]) -> str:
    return "".join(block.get("text") or block.get("thinking") or "" for block in blocks)


def _delta_text(delta: dict[str, Any]) -> str:
    return str(delta.get("text") or delta.get("thinking") or "")


CHECKS = (
    Check("responses", responses),
    Check("responses, streamed", responses_streamed),
    Check("messages, whole and streamed", messages),
    Check("messages/count_tokens", count_tokens),
    Check("embeddings", embeddings, optional=True),
    Check("tokenize, detokenize", tokenize),
)
