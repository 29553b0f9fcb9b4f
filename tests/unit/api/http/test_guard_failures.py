"""Guards that fail, and requests that end otherwise than with an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from openai_bls.transport.model_calls import InputTooLargeError
from tests.unit.api.guard_support import CHAT, CHAT_PATH, Place, as_response, place
from tests.unit.api.http_support import Leaving, given_up
from tests.unit.core_support import WAIT_S, ask, until, usage_body


@pytest.fixture
async def at() -> AsyncIterator[Place]:
    async with place() as made:
        yield made


def tensors(**outputs: list[Any]) -> dict[str, Any]:
    return {name: np.array(values, dtype=object) for name, values in outputs.items()}


@pytest.mark.parametrize("hook", ["before", "after"])
@pytest.mark.parametrize(
    "bad",
    [
        *map(as_response, (b"no JSON", b"\xff", b"[]", b"null", b"[" * 100_000, b'{"request":' * 20_000)),
        *map(as_response, ({"unknown": 1}, {"error": {}}, {"error": {"message": 1}})),
        *(as_response({"error": {"message": "m", "status": status}}) for status in (500, 200)),
        *map(as_response, ({"request": "text", "answer": "text"}, {"request": {}, "answer": {}})),
        *(as_response({field: {}, "error": {"message": "m"}}) for field in ("request", "answer")),
        *(tensors(response=values) for values in ([], ["text"], [b"{}", b"{}"], [1.0])),
        tensors(other=[b"{}"]),
    ],
)
async def test_what_a_guard_may_not_answer_is_a_failure(hook: str, bad: Any, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"guard_before": "", "guard_after": "", f"guard_{hook}": "watch"}
    for policy in ("refuse", "pass"):
        caplog.clear()
        async with place(**settings, guard_on_failure=policy) as at:
            at.bench.model_calls.models["watch"] = lambda inputs: bad
            answered = await at.ask(CHAT_PATH, CHAT)
            assert at.metrics() == {(hook, "failed"): 1}
            assert f"the guard watch ({hook}) fails" in caplog.text
            if policy == "pass":
                assert answered.status == 200
                assert answered.json()["choices"][0]["message"]["content"] == "hé"
            else:
                error = answered.json()["error"]
                assert (answered.status, error["code"]) == (503, "guard_unavailable")
                assert answered.headers["retry-after"] == "1"
                assert "watch" not in error["message"]


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


@pytest.mark.parametrize("policy", ["refuse", "pass"])
@pytest.mark.parametrize("hook", ["before", "after"])
async def test_what_is_too_large_for_a_guard_does_not_go_round_it(hook: str, policy: str) -> None:
    settings = {"guard_before": "", "guard_after": "", f"guard_{hook}": "watch", "guard_on_failure": policy}
    async with place(**settings) as at:
        setattr(at.guard, hook, lambda question: InputTooLargeError(1000))
        answered = await at.ask(CHAT_PATH, CHAT, None if hook == "before" else "hé")
        error = answered.json()["error"]
        assert (answered.status, error["type"]) == (413, "invalid_request_error")
        assert "watch" not in error["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cancelled_request_is_told_with_its_usage(at: Place, *, stream: bool) -> None:
    await given_up(at.app, at.bench.engine, CHAT_PATH, {**CHAT, "stream": stream}, "a")
    await until(lambda: len(at.guard.asked) == 2)
    after = at.guard.asked[-1]
    assert (after["outcome"], after["answer"], after["stream"]) == ("cancelled", None, stream)
    assert after["usage"] == usage_body(2, 1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stops", [False, True])
async def test_a_failed_request_is_told_with_its_error(at: Place, stops: bool, *, stream: bool) -> None:
    """Unless the server stops."""
    task = asyncio.ensure_future(ask(at.app, "POST", CHAT_PATH, {**CHAT, "stream": stream}))
    await until(lambda: at.bench.engine.requests)
    if stops:
        assert at.bench.service.guards is not None
        at.bench.service.guards.close()
    at.bench.engine.deliver(0, [], "error", error="broken")
    assert (await asyncio.wait_for(task, WAIT_S)).status == 500
    if stops:
        assert at.guard.hooks() == ["before"]
        return
    await until(lambda: len(at.guard.asked) == 2)
    after = at.guard.asked[-1]
    assert (after["outcome"], after["answer"], after["error"]["message"]) == ("failed", None, "broken")


async def test_a_request_that_is_refused_before_the_engine_has_no_after(at: Place) -> None:
    assert (await at.ask(CHAT_PATH, {**CHAT, "unknown": 1}, None)).status == 400
    assert at.guard.hooks() == ["before"]


@pytest.mark.parametrize("hook", ["before", "after"])
async def test_a_client_that_leaves_while_the_guard_looks(at: Place, hook: str) -> None:
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
