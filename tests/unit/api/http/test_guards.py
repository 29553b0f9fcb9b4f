"""Guards on /v1: what they see, and what becomes of requests and answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.api.guard_support import CHAT, CHAT_PATH, Place, as_response, place, refusal
from tests.unit.api.responses.responses_support import call_text
from tests.unit.core_support import WAIT_S, ask, events, until, usage_body
from tests.unit.pipeline.task_models.task_support import model

# Path and body of every endpoint that generates.
GENERATING: dict[str, tuple[str, dict[str, Any]]] = {
    "chat.completions": (CHAT_PATH, CHAT),
    "completions": ("/v1/completions", {"prompt": "hi"}),
    "responses": ("/v1/responses", {"input": "hi"}),
    "messages": ("/v1/messages", {"model": "tiny", "messages": CHAT["messages"], "max_tokens": 9}),
}
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "embeddings": ("/v1/embeddings", {"input": "hi"}),
    "tokenize": ("/v1/tokenize", {"prompt": "hi"}),
    "detokenize": ("/v1/detokenize", {"tokens": [1]}),
    "messages.count_tokens": ("/v1/messages/count_tokens", {"model": "tiny", "messages": CHAT["messages"]}),
    "responses.input_tokens": ("/v1/responses/input_tokens", {"input": "hi"}),
}


@pytest.fixture
async def at() -> AsyncIterator[Place]:
    async with place() as made:
        yield made


@pytest.mark.parametrize("name", [*GENERATING, *OTHERS])
async def test_both_hooks_see_a_whole_answer(at: Place, name: str) -> None:
    path, body = {**GENERATING, **OTHERS}[name]
    answered = await at.ask(path, body, headers=(("x-request-id", "mine"),))
    assert answered.status == 200
    before, after = at.guard.asked
    told = {"endpoint": name, "request_id": "mine", "key": None, "request": body}
    assert before == {"hook": "before", **told}
    assert after == {
        "hook": "after",
        **told,
        "stream": False,
        "outcome": "done",
        "error": None,
        "answer": answered.json(),
        "model": "tiny",
        "usage": usage_body(2, 3) if name in GENERATING else after["usage"],
    }
    assert at.metrics() == {("before", "passed"): 1, ("after", "passed"): 1}


@pytest.mark.parametrize("name", GENERATING)
async def test_a_streamed_answer_is_seen_as_a_whole_at_its_end(at: Place, name: str) -> None:
    path, body = GENERATING[name]
    more = {"n": 2} if name in ("chat.completions", "completions") else {}
    whole = (await at.ask(path, {**body, **more})).json()
    streamed = await at.ask(path, {**body, **more, "stream": True})
    after = at.guard.asked[-1]
    assert (after["hook"], after["stream"], after["outcome"], after["error"]) == ("after", True, "done", None)
    assert after["usage"] == usage_body(2, 6 if more else 3)
    answer = after["answer"]
    # The same id as in the stream; times and ids of items are each answer's own.
    assert answer["id"] in streamed.body.decode()
    for made in (whole, answer):
        for key in ("id", "created", "created_at", "completed_at"):
            made.pop(key, None)
        for item in made.get("output", ()):
            item.pop("id")
    assert answer == whole


async def test_tool_calls_of_a_stream(at: Place) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    await at.ask(CHAT_PATH, {**CHAT, "tools": [tool], "stream": True}, call_text("weather", '{"a": 1}'))
    (choice,) = at.guard.asked[-1]["answer"]["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"a": 1}'}


@pytest.mark.parametrize("decoupled", [False, True])
async def test_chat_models_are_guarded_like_engines(at: Place, *, decoupled: bool) -> None:
    """Models of users behind the same endpoint."""
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    message = {"role": "assistant", "content": "Paris"}
    whole = {"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}
    chunks = [
        {"id": "x", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Pa"}}]},
        {"id": "x", "choices": [{"index": 0, "delta": {"content": "ris"}, "finish_reason": "stop"}], "usage": usage},
    ]
    policy = {"model_transaction_policy": {"decoupled": True}} if decoupled else {}
    at.bench.service.models.tasks.replace([model("chat", "rag", max_batch_size=0, **policy)])
    at.bench.model_calls.models["rag"] = lambda inputs: as_response(whole)
    at.bench.model_calls.streams["rag"] = lambda inputs: [as_response(chunk) for chunk in chunks]
    for stream in (True,) if decoupled else (False, True):
        answered = await at.ask(CHAT_PATH, {**CHAT, "model": "rag", "stream": stream}, None)
        assert answered.status == 200
        await until(lambda: at.guard.hooks()[-1] == "after")
        after = at.guard.asked[-1]
        assert (after["stream"], after["outcome"], after["model"]) == (stream, "done", "rag")
        assert after["usage"] == usage_body(3, 2)
        assert after["answer"]["choices"] == whole["choices"]
    assert at.guard.hooks() == ["before", "after"] * (1 if decoupled else 2)
    at.guard.before = refusal(status=403)
    assert (await at.ask(CHAT_PATH, {**CHAT, "model": "rag"}, None)).status == 403


async def test_a_stream_does_not_wait_for_its_guard(at: Place) -> None:
    at.guard.after = refusal()
    quiet = await Place(guard_before="", guard_after="").ask(CHAT_PATH, {**CHAT, "stream": True})
    answered = await at.ask(CHAT_PATH, {**CHAT, "stream": True})
    assert len(events(answered.body)) == len(events(quiet.body))
    assert events(answered.body)[-1] == "[DONE]"
    at.guard.hold["after"] = held = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(ask(at.app, "POST", CHAT_PATH, {**CHAT, "stream": True}))
    await until(lambda: len(at.bench.engine.requests) == 2)
    at.bench.engine.deliver(1, "a", "stop")
    await asyncio.wait_for(task, WAIT_S)
    # The guard has not answered yet, and the server waits for it before it stops.
    assert at.bench.service.in_progress == 1
    held.set_result(None)


# --- changes ---


async def test_a_changed_request_is_what_is_honoured(at: Place) -> None:
    at.guard.before = lambda question: {"request": {**question["request"], "max_tokens": 3, "model": "openai_bls"}}
    answered = await at.ask(CHAT_PATH, {**CHAT, "model": "gpt-4"})
    assert answered.json()["model"] == "openai_bls"
    assert at.engine_request.max_tokens == 3
    assert at.guard.asked[-1]["request"]["model"] == "openai_bls"
    assert at.metrics() == {("before", "changed"): 1, ("after", "passed"): 1}


async def test_a_changed_request_is_validated_as_the_clients(at: Place) -> None:
    at.guard.before = lambda question: {"request": {**question["request"], "temperature": 99}}
    answered = await at.ask(CHAT_PATH, CHAT, None)
    assert (answered.status, answered.json()["error"]["param"]) == (400, "temperature")


@pytest.mark.parametrize("name", GENERATING)
async def test_a_changed_answer(at: Place, name: str) -> None:
    path, body = GENERATING[name]
    at.guard.after = lambda question: {"answer": {**question["answer"], "note": "é changed"}}
    answered = await at.ask(path, body)
    assert answered.json() == {**at.guard.asked[-1]["answer"], "note": "é changed"}
    assert answered.headers["content-length"] == str(len(answered.body))


async def test_a_stored_response_is_what_the_guard_has_left(at: Place) -> None:
    """Else the removed text comes out of the store, or goes into the next prompt."""

    def redacted(question: dict[str, Any]) -> Any:
        return json.loads(json.dumps({"answer": question["answer"]}).replace("secret", "[...]"))

    at.guard.after = redacted
    first = (await at.ask("/v1/responses", {"input": "hi"}, "secret")).json()
    assert first["output"][0]["content"][0]["text"] == "[...]"
    again = await ask(at.app, "GET", f"/v1/responses/{first['id']}")
    assert again.json() == first
    await at.ask("/v1/responses", {"input": "more", "previous_response_id": first["id"]})
    assert [message["content"] for message in at.bench.prompts.requests[-1].messages or []] == [
        "hi",
        "[...]",
        "more",
    ]
    # Not a response any more: it is answered, but not stored.
    at.guard.after = lambda question: {"answer": {"id": question["answer"]["id"]}}
    last = await at.ask("/v1/responses", {"input": "hi"})
    assert (last.status, list(last.json())) == (200, ["id"])
    assert (await ask(at.app, "GET", f"/v1/responses/{last.json()['id']}")).status == 404


# --- refusals ---


@pytest.mark.parametrize("hook", ["before", "after"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_is_openais_error(at: Place, hook: str, *, stream: bool) -> None:
    defaults = {"status": 400, "type": "invalid_request_error", "code": "refused_by_guard", "param": None}
    for fields in ({}, {"status": 403, "type": "policy", "code": "c", "param": "messages"}):
        setattr(at.guard, hook, refusal(**fields))
        answered = await at.ask(CHAT_PATH, {**CHAT, "stream": stream}, "ab" if hook == "after" else None)
        if hook == "after" and stream:
            assert answered.status == 200
            continue
        error = {"message": "not here", **defaults, **fields}
        assert answered.status == error.pop("status")
        assert answered.json() == {"error": error}
    assert at.metrics()[hook, "refused"] == 2
    assert len(at.bench.engine.requests) == 2 * (hook == "after")


async def test_a_refusal_of_a_message_is_anthropics_error(at: Place) -> None:
    path, body = GENERATING["messages"]
    for status, kind in ((403, "permission_error"), (451, "invalid_request_error")):
        at.guard.before = refusal(status=status)
        answered = await at.ask(path, body, None)
        assert answered.status == status
        assert answered.json()["error"] == {"type": kind, "message": "not here"}


async def test_a_refused_response_is_not_stored(at: Place) -> None:
    at.guard.after = refusal()
    answered = await at.ask("/v1/responses", {"input": "hi"})
    assert answered.status == 400
    response_id = at.guard.asked[-1]["answer"]["id"]
    assert (await ask(at.app, "GET", f"/v1/responses/{response_id}")).status == 404


# --- what guards do not see ---


async def test_endpoints_without_guards() -> None:
    async with place(lora_root="/nowhere") as at:
        for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
            await at.ask(path, {"lora_name": "a", "lora_path": "b"}, None)
        for path in ("/v1/models", "/v1/responses/resp_1", "/health"):
            await ask(at.app, "GET", path)
        assert at.guard.asked == []


async def test_a_body_that_is_no_object_is_refused_without_the_guard(at: Place) -> None:
    for path, _ in GENERATING.values():
        for body in (b"{", b"[]", b"\xff", b"[" * 100_000):
            assert (await at.ask(path, body, None)).status == 400
    assert at.guard.asked == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_guard_is_told_the_name_of_the_key(tmp_path: Path, *, stream: bool) -> None:
    (tmp_path / "keys").write_text("alice: a1\n")
    async with place(api_key="k", api_keys_file=str(tmp_path / "keys")) as at:
        for key, name in (("a1", "alice"), ("k", None)):
            answered = await at.ask(CHAT_PATH, {**CHAT, "stream": stream}, headers=(("x-api-key", key),))
            assert answered.status == 200
            await until(lambda: len(at.guard.asked) == 2)
            assert [question["key"] for question in at.guard.asked] == [name, name]
            at.guard.asked.clear()
        assert (await at.ask(CHAT_PATH, CHAT, None)).status == 401
        assert at.guard.asked == []


@pytest.mark.parametrize("hook", ["before", "after"])
@pytest.mark.parametrize("stream", [False, True])
async def test_one_call_with_one_guard_and_none_without(hook: str, *, stream: bool) -> None:
    other = "after" if hook == "before" else "before"
    async with place(**{f"guard_{other}": ""}) as at:
        assert (await at.ask(CHAT_PATH, {**CHAT, "stream": stream})).status == 200
        assert at.guard.hooks() == [hook]
    async with place(guard_before="", guard_after="") as at:
        assert at.bench.service.guards is None
        assert (await at.ask(CHAT_PATH, {**CHAT, "stream": stream})).status == 200
        assert at.bench.model_calls.called == []
