"""Answers that become large while they are made: they end with an error of their own, and nobody else's with them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from openai_bls.pipeline.lifecycle.answer_room import FREE_BYTES
from tests.unit.api.http_support import application
from tests.unit.core_support import WAIT_S, Answered, Bench, ask, engine_info, until

ROOM = 8 * FREE_BYTES
MESSAGES = [{"role": "user", "content": "a"}]
LONG: dict[str, Any] = {"max_tokens": 3_500}

# What has a whole answer, or keeps one; the field that is named.
ASKED: list[tuple[str, dict[str, Any], str]] = [
    ("chat/completions", {"messages": MESSAGES, "n": 3, "logprobs": True, "top_logprobs": 20, **LONG}, "top_logprobs"),
    ("chat/completions", {"messages": MESSAGES, "n": 12, **LONG}, "n"),
    ("completions", {"prompt": ["a", "b"], "logprobs": 5, **LONG}, "logprobs"),
    ("completions", {"prompt": "a", "best_of": 4, "logprobs": 0, **LONG}, "logprobs"),
    ("responses", {"input": "a", "include": ["message.output_text.logprobs"], "top_logprobs": 9}, "top_logprobs"),
    ("responses", {"input": "a", "max_output_tokens": 3_900}, "max_output_tokens"),
    ("messages", {"model": "openai_bls", "messages": MESSAGES, "max_tokens": 3_900}, "max_tokens"),
]


def bench_of(**settings: Any) -> Bench:
    return Bench(engine_info(max_model_len=4_000), max_body_bytes_in_flight=ROOM, **settings)


def feed(bench: Bench, text: str) -> None:
    """The same tokens for all sequences."""
    for at in range(len(bench.engine.requests)):
        bench.engine.deliver(at, text)


async def overfilled(bench: Bench, path: str, body: dict[str, Any]) -> Answered:
    """The answer to a request whose tokens come until it ends."""
    task = asyncio.ensure_future(ask(application(bench), "POST", f"/v1/{path}", body))
    await until(lambda: bench.engine.requests)
    while bench.engine.listeners and not task.done():
        feed(bench, "x" * 300)
        await asyncio.sleep(0)
    answered = await asyncio.wait_for(task, WAIT_S)
    assert bench.service.in_progress == 0
    assert bench.service._answers.held == 0
    # The engine works on none of it any more.
    assert sorted(bench.engine.cancelled) == sorted(request.request_id for request in bench.engine.requests)
    return answered


@pytest.mark.parametrize(("path", "body", "param"), ASKED)
async def test_a_whole_answer_that_no_room_holds(path: str, body: dict[str, Any], param: str) -> None:
    answered = await overfilled(bench_of(), path, body)
    assert answered.status == 400
    error = answered.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert "max_body_bytes_in_flight" in error["message"]
    if path != "messages":  # whose errors have neither
        assert (error["param"], error["code"]) == (param, "answer_too_large")


async def test_a_streamed_response_keeps_what_its_end_repeats() -> None:
    body = {**ASKED[4][1], "stream": True}
    answered = await overfilled(bench_of(), "responses", body)
    assert answered.status == 200
    (told,) = [json.loads(line[6:]) for line in answered.body.decode().split("\n") if '"type":"error"' in line]
    assert (told["code"], told["param"]) == ("answer_too_large", "top_logprobs")
    assert b"event: response.failed" in answered.body


@pytest.mark.parametrize(("path", "body", "param"), [ASKED[0], ASKED[1], ASKED[2], ASKED[6]])
async def test_a_stream_is_not_kept(path: str, body: dict[str, Any], param: str) -> None:
    bench = bench_of()
    task = asyncio.ensure_future(ask(application(bench), "POST", f"/v1/{path}", {**body, "stream": True}))
    await until(lambda: bench.engine.requests)
    for _ in range(10):
        feed(bench, "x" * 300)
        await asyncio.sleep(0)
    assert bench.service._answers.held == 0
    for at in range(len(bench.engine.requests)):
        bench.engine.deliver(at, "", "length")
    answered = await asyncio.wait_for(task, WAIT_S)
    assert answered.status == 200
    assert len(answered.body) > ROOM or "logprobs" not in body
    assert b"error" not in answered.body


async def test_many_choices_without_log_probabilities_have_room() -> None:
    bench = Bench()
    body = {"messages": MESSAGES, "n": 128, "max_tokens": 4_000}
    task = asyncio.ensure_future(ask(application(bench), "POST", "/v1/chat/completions", body))
    await until(lambda: bench.engine.requests)
    for _ in range(30):
        feed(bench, "word")
    for at in range(128):
        bench.engine.deliver(at, "end", "length")
    choices = (await asyncio.wait_for(task, WAIT_S)).json()["choices"]
    assert [choice["message"]["content"] for choice in choices] == ["word" * 30 + "end"] * 128


async def test_what_one_key_fills_is_its_own_loss(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("alice: alice\nbob: bob\n")
    bench = bench_of(api_keys_file=str(tmp_path / "keys"))
    app = application(bench)

    async def begin(key: str) -> asyncio.Task[Answered]:
        before = len(bench.engine.requests)
        body = {"prompt": "a", "logprobs": 20, **LONG}
        task = asyncio.ensure_future(
            ask(app, "POST", "/v1/completions", body, [("authorization", f"Bearer {key}")]),
        )
        await until(lambda: len(bench.engine.requests) > before)
        return task

    def grow(at: int, key: str, size: int) -> None:
        """Have an answer grow until the answers of its key have `size` bytes."""
        of_keys = bench.service._answers._of_keys
        while sum(answer.size for answer in of_keys.get(key, ())) < size:
            bench.engine.deliver(at, "x" * 10)

    large, small, other = [await begin(key) for key in ("alice", "alice", "bob")]
    grow(0, "alice", ROOM // 2)
    grow(1, "alice", ROOM * 3 // 4)
    # Half of the room is his share, whoever was first.
    grow(2, "bob", ROOM * 2 // 5)
    refused = await asyncio.wait_for(large, WAIT_S)
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    error = refused.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("server_error", "server_overloaded", None)
    for at, task in ((1, small), (2, other)):
        bench.engine.deliver(at, "end", "length")
        answered = await asyncio.wait_for(task, WAIT_S)
        assert answered.status == 200
        assert answered.json()["choices"][0]["text"].endswith("xend")
    assert bench.service._answers.held == 0
