from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from openai_bls.core.errors import InvalidRequestError
from tests.unit.api.http_support import application, asked, given_up, until
from tests.unit.core_support import Answered, Bench, ask, token_ids


@asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[tuple[Bench, Starlette]]:
    bench = Bench(**settings)
    bench.service.on_end = bench.service.metrics.ended
    yield bench, application(bench)
    assert bench.service.in_progress == 0


def one(
    path: str, body: bytes | dict[str, Any], headers: tuple[tuple[str, str], ...] = (), **settings: Any
) -> Answered:
    return asked(Bench(**settings), path, body, headers=headers)


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
async def test_embeddings(encoding: str, read: Callable[[Any], list[float]]) -> None:
    async with served() as (bench, app):
        body = {"input": ["a", "b"], "encoding_format": encoding}
        asked = asyncio.create_task(ask(app, "POST", "/v1/embeddings", body))
        while len(bench.engine.requests) < 2:
            await asyncio.sleep(0)
        bench.engine.deliver(1, [], "stop", embedding=[0.0, 1.0])
        bench.engine.deliver(0, [], "stop", embedding=[1.0, 0.0])
        answered = await asked
        assert answered.status == 200
        assert [read(item["embedding"]) for item in answered.json()["data"]] == [[1.0, 0.0], [0.0, 1.0]]


async def test_a_client_that_goes_away_stops_the_engines_work() -> None:
    async with served() as (bench, app):
        await given_up(app, bench.engine, "/v1/embeddings", {"input": "a"})
        await until(lambda: bench.service.in_progress == 0)


async def test_metrics_need_no_key_and_tell_of_requests_and_refusals() -> None:
    async with served(api_key="k") as (bench, app):
        bench.service.on_refused("embeddings", InvalidRequestError("no"), "")
        await ask(app, "POST", "/tokenize", {"prompt": "x"}, (("authorization", "Bearer k"),))
        answered = await ask(app, "GET", "/metrics")
        assert answered.status == 200
        assert answered.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        text = answered.body.decode()
        assert 'openai_bls_requests_total{endpoint="tokenize",model="tiny",outcome="done"} 1.0\n' in text
        assert 'openai_bls_requests_total{endpoint="embeddings",model="",outcome="400"} 1.0\n' in text
        assert "# TYPE openai_bls_requests_total counter\n" in text
        assert "# TYPE openai_bls_time_to_first_token_seconds histogram\n" in text


async def test_ping_and_load() -> None:
    async with served() as (bench, app):
        for method in ("GET", "POST"):
            answered = await ask(app, method, "/ping")
            assert (answered.status, answered.body) == (200, b"")
        assert (await ask(app, "GET", "/load")).json() == {"server_load": 0}
        task = asyncio.create_task(ask(app, "POST", "/v1/completions", {"prompt": "a"}))
        await until(lambda: bench.engine.requests)
        assert (await ask(app, "GET", "/load")).json() == {"server_load": 1}
        bench.engine.deliver(0, "b", "stop")
        await task
        bench.service.draining = True
        assert (await ask(app, "GET", "/ping")).status == 503


async def test_the_prefix_cache_is_reset() -> None:
    async with served() as (bench, app):
        assert (await ask(app, "POST", "/reset_prefix_cache")).status == 200
        assert bench.engine.prefix_resets == 1
    async with served(api_key="secret") as (bench, app):
        assert (await ask(app, "POST", "/reset_prefix_cache")).status == 401
        assert (await ask(app, "GET", "/tokenizer_info")).status == 401
        assert bench.engine.prefix_resets == 0


async def test_tokenizer_info(tmp_path: Path) -> None:
    async with served() as (_, app):
        assert (await ask(app, "GET", "/tokenizer_info")).status == 404
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "X", "chat_template": "{{ 1 }}"}')
    async with served(tokenizer_info=True) as (bench, app):
        assert (await ask(app, "GET", "/tokenizer_info")).status == 404
        bench.service.models.default.tokenizer_dir = tmp_path
        found = (await ask(app, "GET", "/tokenizer_info")).json()
        assert found == {"tokenizer_class": "X", "chat_template": "{{ 1 }}"}
        (tmp_path / "chat_template.jinja").write_text("{{ 2 }}")
        (tmp_path / "tokenizer_config.json").write_text("[")
        found = (await ask(app, "GET", "/tokenizer_info")).json()
        assert found == {"tokenizer_class": None, "chat_template": "{{ 2 }}"}
