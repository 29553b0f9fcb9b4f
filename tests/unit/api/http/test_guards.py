"""Guards on /v1: what they see, and what becomes of requests and answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.applications import Starlette

from openai_bls.core.engine_types import GenerationRequest
from openai_bls.transport.model_calls import Array, Arrays
from tests.unit.api.http_support import Leaving, application, given_up, until
from tests.unit.api.responses.responses_support import call_text
from tests.unit.core_support import WAIT_S, Answered, Bench, ask, events, usage_body
from tests.unit.task_support import model

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
CHAT_PATH = "/v1/chat/completions"
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

Says = Callable[[dict[str, Any]], Any]


class Guard:
    """A model that answers both hooks; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.before: Says = lambda question: {}
        self.after: Says = lambda question: {}
        self.hold: dict[str, Awaitable[Any]] = {}
        """By hook, what its answer waits for."""

    async def __call__(self, inputs: Mapping[str, Array]) -> Arrays:
        (text,) = inputs["request"].tolist()
        question = json.loads(text)
        self.asked.append(question)
        if question["hook"] in self.hold:
            await self.hold[question["hook"]]
        said = getattr(self, question["hook"])(question)
        if isinstance(said, Exception):
            raise said
        return {"response": np.array([said if isinstance(said, bytes) else json.dumps(said).encode()], dtype=object)}

    def hooks(self) -> list[str]:
        return [question["hook"] for question in self.asked]


def as_response(value: Any) -> Arrays:
    return {"response": np.array([json.dumps(value).encode()], dtype=object)}


class Place:
    """The application with a guard for both hooks."""

    def __init__(self, **settings: Any) -> None:
        self.bench = Bench(**{"guard_before": "watch", "guard_after": "watch", **settings})
        self.guard = Guard()
        self.bench.model_calls.models["watch"] = self.guard
        self.app: Starlette = application(self.bench)

    @property
    def engine_request(self) -> GenerationRequest:
        (request,) = self.bench.engine.requests
        return request

    async def ask(self, path: str, body: Any, text: str | None = "hé", **more: Any) -> Answered:
        """A request; the engine answers `text` to each of its sequences, or is not reached."""
        before = len(self.bench.engine.requests)
        task = asyncio.ensure_future(ask(self.app, "POST", path, body, **more))
        await until(lambda: len(self.bench.engine.requests) > before or task.done())
        for at in range(before, len(self.bench.engine.requests)):
            assert text is not None
            if "embeddings" in path:
                self.bench.engine.deliver(at, [], "stop", embedding=[1.0, 0.0])
            else:
                self.bench.engine.deliver(at, text[:1])
                self.bench.engine.deliver(at, text[1:], "stop")
        answered = await asyncio.wait_for(task, WAIT_S)
        await until(lambda: self.bench.service.in_progress == 0)
        return answered

    def metrics(self) -> dict[tuple[str, str], float]:
        """Calls by hook and outcome."""
        return {
            (sample.labels["hook"], sample.labels["outcome"]): sample.value
            for family in self.bench.service.metrics.collect()
            for sample in family.samples
            if sample.name == "openai_bls_guard_call_seconds_count"
        }


@asynccontextmanager
async def place(**settings: Any) -> AsyncIterator[Place]:
    made = Place(**settings)
    yield made
    await until(lambda: made.bench.service.in_progress == 0)


def refusal(**fields: Any) -> Says:
    return lambda question: {"error": {"message": "not here", **fields}}


@pytest.mark.parametrize("name", [*GENERATING, *OTHERS])
async def test_both_hooks_see_a_whole_answer(name: str) -> None:
    path, body = {**GENERATING, **OTHERS}[name]
    async with place() as at:
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
async def test_a_streamed_answer_is_seen_as_a_whole_at_its_end(name: str) -> None:
    path, body = GENERATING[name]
    more = {"n": 2} if name in ("chat.completions", "completions") else {}
    async with place() as at:
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


async def test_tool_calls_of_a_stream() -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    async with place() as at:
        await at.ask(CHAT_PATH, {**CHAT, "tools": [tool], "stream": True}, call_text("weather", '{"a": 1}'))
        (choice,) = at.guard.asked[-1]["answer"]["choices"]
        assert choice["finish_reason"] == "tool_calls"
        (call,) = choice["message"]["tool_calls"]
        assert call["function"] == {"name": "weather", "arguments": '{"a": 1}'}


@pytest.mark.parametrize("decoupled", [False, True])
async def test_chat_models_are_guarded_like_engines(*, decoupled: bool) -> None:
    """Models of users behind the same endpoint."""
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    message = {"role": "assistant", "content": "Paris"}
    whole = {"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}
    chunks = [
        {"id": "x", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Pa"}}]},
        {"id": "x", "choices": [{"index": 0, "delta": {"content": "ris"}, "finish_reason": "stop"}], "usage": usage},
    ]
    policy = {"model_transaction_policy": {"decoupled": True}} if decoupled else {}
    async with place() as at:
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


async def test_a_stream_does_not_wait_for_its_guard() -> None:
    async with place() as at:
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


async def test_a_changed_request_is_what_is_honoured() -> None:
    async with place() as at:
        at.guard.before = lambda question: {"request": {**question["request"], "max_tokens": 3, "model": "openai_bls"}}
        answered = await at.ask(CHAT_PATH, {**CHAT, "model": "gpt-4"})
        assert answered.json()["model"] == "openai_bls"
        assert at.engine_request.max_tokens == 3
        assert at.guard.asked[-1]["request"]["model"] == "openai_bls"
        assert at.metrics() == {("before", "changed"): 1, ("after", "passed"): 1}


async def test_a_changed_request_is_validated_as_the_clients() -> None:
    async with place() as at:
        at.guard.before = lambda question: {"request": {**question["request"], "temperature": 99}}
        answered = await at.ask(CHAT_PATH, CHAT, None)
        assert (answered.status, answered.json()["error"]["param"]) == (400, "temperature")


@pytest.mark.parametrize("name", GENERATING)
async def test_a_changed_answer(name: str) -> None:
    path, body = GENERATING[name]
    async with place() as at:
        at.guard.after = lambda question: {"answer": {**question["answer"], "note": "é changed"}}
        answered = await at.ask(path, body)
        assert answered.json() == {**at.guard.asked[-1]["answer"], "note": "é changed"}
        assert answered.headers["content-length"] == str(len(answered.body))


async def test_a_stored_response_is_what_the_guard_has_left() -> None:
    """Else the removed text comes out of the store, or goes into the next prompt."""

    def redacted(question: dict[str, Any]) -> Any:
        return json.loads(json.dumps({"answer": question["answer"]}).replace("secret", "[...]"))

    async with place() as at:
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
async def test_a_refusal_is_openais_error(hook: str, *, stream: bool) -> None:
    async with place() as at:
        setattr(at.guard, hook, refusal(status=403, type="policy", code="c", param="messages"))
        answered = await at.ask(CHAT_PATH, {**CHAT, "stream": stream}, "ab" if hook == "after" else None)
        assert at.metrics()[hook, "refused"] == 1
        if hook == "after" and stream:
            assert answered.status == 200
            return
        assert answered.status == 403
        error = {"message": "not here", "type": "policy", "param": "messages", "code": "c"}
        assert answered.json() == {"error": error}
        assert len(at.bench.engine.requests) == (hook == "after")


async def test_a_refusal_has_defaults() -> None:
    async with place() as at:
        at.guard.before = refusal()
        answered = await at.ask(CHAT_PATH, CHAT, None)
        kind, code = "invalid_request_error", "refused_by_guard"
        assert answered.status == 400
        assert answered.json() == {"error": {"message": "not here", "type": kind, "param": None, "code": code}}


async def test_a_refusal_of_a_message_is_anthropics_error() -> None:
    path, body = GENERATING["messages"]
    async with place() as at:
        for status, kind in ((403, "permission_error"), (451, "invalid_request_error")):
            at.guard.before = refusal(status=status)
            answered = await at.ask(path, body, None)
            assert answered.status == status
            assert answered.json()["error"] == {"type": kind, "message": "not here"}


async def test_a_refused_response_is_not_stored() -> None:
    async with place() as at:
        at.guard.after = refusal()
        answered = await at.ask("/v1/responses", {"input": "hi"})
        assert answered.status == 400
        response_id = at.guard.asked[-1]["answer"]["id"]
        assert (await ask(at.app, "GET", f"/v1/responses/{response_id}")).status == 404


# --- the policy ---


@pytest.mark.parametrize("hook", ["before", "after"])
@pytest.mark.parametrize(
    "bad",
    [
        b"no JSON",
        b"\xff",
        b"[]",
        b"null",
        {"unknown": 1},
        {"error": {}},
        {"error": {"message": 1}},
        {"error": {"message": "m", "status": 500}},
        {"error": {"message": "m", "status": 200}},
        {"request": "text", "answer": "text"},
        {"request": {}, "answer": {}},
        {"request": {}, "error": {"message": "m"}},
        {"answer": {}, "error": {"message": "m"}},
        b"[" * 100_000,
        b'{"request":' * 20_000,
    ],
)
async def test_what_a_guard_may_not_answer_is_a_failure(hook: str, bad: Any, caplog: pytest.LogCaptureFixture) -> None:
    for policy in ("refuse", "pass"):
        caplog.clear()
        async with place(guard_on_failure=policy) as at:
            setattr(at.guard, hook, lambda question: bad)
            answered = await at.ask(CHAT_PATH, CHAT)
            assert at.metrics()[hook, "failed"] == 1
            assert f"the guard watch ({hook}) fails" in caplog.text
            if policy == "pass":
                assert answered.status == 200
                assert answered.json()["choices"][0]["message"]["content"] == "hé"
            else:
                error = answered.json()["error"]
                assert (answered.status, error["code"]) == (503, "guard_unavailable")
                assert answered.headers["retry-after"] == "1"
                assert "watch" not in error["message"]


@pytest.mark.parametrize("output", [[], ["text"], [b"{}", b"{}"], [1.0]])
@pytest.mark.parametrize("policy", ["refuse", "pass"])
async def test_a_guard_with_other_tensors(output: list[Any], policy: str) -> None:
    async with place(guard_on_failure=policy) as at:
        at.bench.model_calls.models["watch"] = lambda inputs: {"response": np.array(output, dtype=object)}
        assert (await at.ask(CHAT_PATH, CHAT)).status == (503 if policy == "refuse" else 200)
        at.bench.model_calls.models["watch"] = lambda inputs: {"other": np.array([b"{}"], dtype=object)}
        assert (await at.ask(CHAT_PATH, CHAT)).status == (503 if policy == "refuse" else 200)


@pytest.mark.parametrize("policy", ["refuse", "pass"])
@pytest.mark.parametrize("hook", ["before", "after"])
async def test_a_guard_that_is_not_loaded_or_hangs(hook: str, policy: str, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"guard_before": "", "guard_after": "", f"guard_{hook}": "watch", "guard_on_failure": policy}
    status = 503 if policy == "refuse" else 200
    async with place(guard_timeout_s=0.01, **settings) as at:
        del at.bench.model_calls.models["watch"]
        for _ in range(3):
            assert (await at.ask(CHAT_PATH, CHAT)).status == status
        at.bench.model_calls.models["watch"] = at.guard
        at.guard.hold[hook] = asyncio.get_running_loop().create_future()
        assert (await at.ask(CHAT_PATH, CHAT)).status == status
        assert at.metrics() == {(hook, "failed"): 3, (hook, "timeout"): 1}
        # One line, however many requests.
        assert caplog.text.count("fails, requests") == 1
        at.guard.hold.clear()
        caplog.set_level("INFO")
        assert (await at.ask(CHAT_PATH, CHAT)).status == 200
        assert "answers again" in caplog.text


# --- ends ---


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cancelled_request_is_told_with_its_usage(*, stream: bool) -> None:
    async with place() as at:
        await given_up(at.app, at.bench.engine, CHAT_PATH, {**CHAT, "stream": stream}, "a")
        await until(lambda: len(at.guard.asked) == 2)
        after = at.guard.asked[-1]
        assert (after["outcome"], after["answer"], after["stream"]) == ("cancelled", None, stream)
        assert after["usage"] == usage_body(2, 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failed_request_is_told_with_its_error(*, stream: bool) -> None:
    async with place() as at:
        task = asyncio.ensure_future(ask(at.app, "POST", CHAT_PATH, {**CHAT, "stream": stream}))
        await until(lambda: at.bench.engine.requests)
        at.bench.engine.deliver(0, [], "error", error="broken")
        assert (await asyncio.wait_for(task, WAIT_S)).status == 500
        await until(lambda: len(at.guard.asked) == 2)
        after = at.guard.asked[-1]
        assert (after["outcome"], after["answer"], after["error"]["message"]) == ("failed", None, "broken")


async def test_a_server_that_stops_tells_the_guard_no_more() -> None:
    async with place() as at:
        task = asyncio.ensure_future(ask(at.app, "POST", CHAT_PATH, CHAT))
        await until(lambda: at.bench.engine.requests)
        guards = at.bench.service.guards
        assert guards is not None
        guards.close()
        at.bench.engine.deliver(0, [], "error", error="broken")
        assert (await asyncio.wait_for(task, WAIT_S)).status == 500
        assert not guards._reports
        assert at.guard.hooks() == ["before"]


async def test_a_request_that_is_refused_before_the_engine_has_no_after() -> None:
    async with place() as at:
        assert (await at.ask(CHAT_PATH, {**CHAT, "unknown": 1}, None)).status == 400
        assert at.guard.hooks() == ["before"]


@pytest.mark.parametrize("hook", ["before", "after"])
async def test_a_client_that_leaves_while_the_guard_looks(hook: str) -> None:
    async with place() as at:
        at.guard.hold[hook] = asyncio.get_running_loop().create_future()
        client = Leaving(at.app, CHAT_PATH, CHAT)
        if hook == "after":
            await until(lambda: at.bench.engine.requests)
            at.bench.engine.deliver(0, "a", "stop")
        await until(lambda: at.guard.hooks()[-1:] == [hook])
        await client.leave()
        await until(lambda: at.bench.service.in_progress == 0)
        assert at.metrics()[hook, "cancelled"] == 1
        assert at.guard.hooks() == ["before", "after"][: 1 + (hook == "after")]


async def test_guards_take_no_more_requests_than_the_server() -> None:
    async with place(max_concurrent_requests=1) as at:
        at.guard.hold["before"] = held = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(ask(at.app, "POST", CHAT_PATH, CHAT))
        await until(lambda: at.guard.asked)
        assert (await ask(at.app, "POST", CHAT_PATH, CHAT)).status == 429
        assert len(at.guard.asked) == 1
        held.set_result(None)
        await until(lambda: at.bench.engine.requests)
        at.bench.engine.deliver(0, "a", "stop")
        assert (await task).status == 200


# --- what guards do not see ---


async def test_endpoints_without_guards() -> None:
    async with place(lora_root="/nowhere") as at:
        for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
            await at.ask(path, {"lora_name": "a", "lora_path": "b"}, None)
        for path in ("/v1/models", "/v1/responses/resp_1", "/health"):
            await ask(at.app, "GET", path)
        assert at.guard.asked == []


async def test_a_body_that_is_no_object_is_refused_without_the_guard() -> None:
    async with place() as at:
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


async def test_a_wrong_key_is_refused_without_the_guard() -> None:
    async with place(api_key="k") as at:
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
