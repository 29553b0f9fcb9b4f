from __future__ import annotations

import asyncio
import base64
import json
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.applications import Starlette

from openai_bls.api.http.app import create_app
from openai_bls.api.http.write_batcher import WriteBatcher
from openai_bls.core.errors import InvalidRequestError
from tests.unit.core_support import Answered, Bench, ask, token_ids


def application(bench: Bench) -> Starlette:
    return create_app(bench.service, WriteBatcher(asyncio.get_running_loop()))


def run(test: Callable[[Bench, Starlette], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        bench = Bench(**settings)
        bench.service.on_end = bench.service.metrics.ended
        await test(bench, application(bench))
        assert bench.service.in_progress == 0

    asyncio.run(main())


def one(
    path: str, body: bytes | dict[str, Any], headers: tuple[tuple[str, str], ...] = (), **settings: Any
) -> Answered:
    answers: list[Answered] = []

    async def test(bench: Bench, app: Starlette) -> None:
        answers.append(await ask(app, "POST", path, body, headers))

    run(test, **settings)
    return answers[0]


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_tokenize_and_detokenize(prefix: str) -> None:
    answered = one(f"{prefix}/tokenize", {"model": "tiny", "prompt": "hé"})
    assert answered.status == 200
    assert answered.headers["content-type"] == "application/json"
    assert answered.json() == {"count": 3, "max_model_len": 1000, "tokens": token_ids("hé"), "token_strs": None}
    answered = one(f"{prefix}/detokenize", {"model": "tiny", "tokens": token_ids("hé")})
    assert answered.json() == {"prompt": "hé"}


@pytest.mark.parametrize(
    ("encoding", "read"),
    [("float", lambda value: value), ("base64", lambda value: list(struct.unpack("<2f", base64.b64decode(value))))],
)
def test_embeddings(encoding: str, read: Callable[[Any], list[float]]) -> None:
    async def test(bench: Bench, app: Starlette) -> None:
        body = {"input": ["a", "b"], "encoding_format": encoding}
        asked = asyncio.create_task(ask(app, "POST", "/v1/embeddings", body))
        while len(bench.engine.requests) < 2:
            await asyncio.sleep(0)
        bench.engine.deliver(1, [], "stop", embedding=[0.0, 1.0])
        bench.engine.deliver(0, [], "stop", embedding=[1.0, 0.0])
        answered = await asked
        assert answered.status == 200
        assert [read(item["embedding"]) for item in answered.json()["data"]] == [[1.0, 0.0], [0.0, 1.0]]

    run(test)


def test_a_client_that_goes_away_stops_the_engines_work() -> None:
    async def test(bench: Bench, app: Starlette) -> None:
        left = asyncio.Event()
        messages: list[dict[str, Any]] = [
            {"type": "http.request", "body": json.dumps({"input": "a"}).encode(), "more_body": False}
        ]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            pass

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/embeddings",
            "root_path": "",
            "query_string": b"",
            "headers": [],
        }
        asked = asyncio.ensure_future(app(scope, receive, send))
        while not bench.engine.requests:
            await asyncio.sleep(0)
        left.set()
        await asked
        while bench.service.in_progress:
            await asyncio.sleep(0)
        assert bench.engine.cancelled == [bench.engine.requests[0].request_id]

    run(test)


def test_metrics_need_no_key_and_tell_of_requests_and_refusals() -> None:
    async def test(bench: Bench, app: Starlette) -> None:
        bench.service.on_refused("embeddings", InvalidRequestError("no"))
        await ask(app, "POST", "/tokenize", {"prompt": "x"}, (("authorization", "Bearer k"),))
        answered = await ask(app, "GET", "/metrics")
        assert answered.status == 200
        assert answered.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        text = answered.body.decode()
        assert 'openai_bls_requests_total{endpoint="tokenize",model="tiny",outcome="done"} 1.0\n' in text
        assert 'openai_bls_requests_total{endpoint="embeddings",model="",outcome="400"} 1.0\n' in text
        assert "# TYPE openai_bls_requests_total counter\n" in text
        assert "# TYPE openai_bls_time_to_first_token_seconds histogram\n" in text

    run(test, api_key="k")
