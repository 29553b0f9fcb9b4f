"""Records of refused requests: one log line and one count each, which say what was answered, and to whom."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from openai_bls.api.endpoint import Endpoint
from openai_bls.api.http.observed import ObservedRequests
from openai_bls.api.registry import ENDPOINTS
from openai_bls.core.errors import ApiError
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.observation.observer import Observer
from openai_bls.pipeline.observation.request_log import fields_of
from tests.unit.api.http_support import application
from tests.unit.core_support import Bench, ask, engine_info, until

NEVER = re.compile("(?!)")
KEY = ("authorization", "Bearer a")
GENERATING = [e for e in ENDPOINTS if e.name in ("chat.completions", "completions", "responses", "messages")]
ADMITTED = [*GENERATING, *(e for e in ENDPOINTS if e.name in ("embeddings", "tokenize", "responses.input_tokens"))]
WITH_BODY = [e for e in ENDPOINTS if e.operation.body is not None and e.operation.body_type == "application/json"]


class Kept(Observer):
    """An observer that keeps what the log lines say."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, Any]] = []

    def ended(self, context: RequestContext) -> None:
        self.lines.append(fields_of(context))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    (tmp_path / "keys").write_text("alice: a max_concurrent_requests=1\nbob: b\n")
    return Bench(api_keys_file=str(tmp_path / "keys"), batches_dir=str(tmp_path / "b"))


def body_of(endpoint: Endpoint, **more: Any) -> dict[str, Any]:
    assert endpoint.smoke is not None
    return {"model": "tiny", **endpoint.smoke.body, **more}


def refused(
    bench: Bench, endpoint: Endpoint, body: bytes | dict[str, Any] = b"", *headers: tuple[str, str]
) -> dict[str, Any]:
    """The log line of a request that is refused. It is the only one, and the error is counted as what it is."""
    observer = bench.service.observer = Kept()
    counted: list[tuple[str, int, str]] = []
    count = bench.service.on_refused

    def on_refused(name: str, error: ApiError, key: str) -> None:
        counted.append((name, error.status, key))
        count(name, error, key)

    bench.service.on_refused = on_refused
    path = endpoint.paths[0].replace("{model:path}", "m")

    async def main() -> int:
        app = ObservedRequests(application(bench), observer, NEVER)
        return (await ask(app, endpoint.method, path, body, headers)).status

    status = asyncio.run(main())
    (line,) = observer.lines
    assert line["status"] == status
    # Anthropic has another status for what is 503 elsewhere.
    assert [(line["endpoint"], 503 if status == 529 else status, line.get("key", ""))] == counted
    assert (line["method"], line["path"], "request_id" in line) == (endpoint.method, path, True)
    assert not [name for name in line if name.endswith("_tokens") or name == "finish_reason"]
    assert bench.records == []
    assert bench.service.in_progress == 0
    return line


def by_name(endpoint: Endpoint) -> str:
    return endpoint.name


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=by_name)
def test_without_a_key(bench: Bench, endpoint: Endpoint) -> None:
    line = refused(bench, endpoint, b"{}", ("authorization", "Bearer none"))
    assert (line["status"], line["error"]) == (401, "invalid_api_key")
    assert not {"key", "model"} & set(line)


@pytest.mark.parametrize("endpoint", WITH_BODY, ids=by_name)
def test_no_json(bench: Bench, endpoint: Endpoint) -> None:
    line = refused(bench, endpoint, b'{"model":', KEY)
    assert (line["status"], line["key"]) == (400, "alice")


@pytest.mark.parametrize("endpoint", WITH_BODY, ids=by_name)
def test_too_large(bench: Bench, endpoint: Endpoint) -> None:
    line = refused(bench, endpoint, b"{}", KEY, ("content-length", str(10**12)))
    assert (line["status"], line["key"]) == (413, "alice")


@pytest.mark.parametrize("endpoint", ADMITTED, ids=by_name)
def test_what_the_body_asks_for(bench: Bench, endpoint: Endpoint) -> None:
    line = refused(bench, endpoint, body_of(endpoint, model="none"), KEY)
    assert (line["status"], line["key"], line["model"]) == (404, "alice", "none")


@pytest.mark.parametrize("endpoint", GENERATING, ids=by_name)
def test_a_field_that_the_engine_refuses(bench: Bench, endpoint: Endpoint) -> None:
    field = {"responses": "max_output_tokens"}.get(endpoint.name, "max_tokens")
    line = refused(bench, endpoint, body_of(endpoint, **{field: -5}), KEY)
    assert (line["status"], line["key"]) == (400, "alice")


@pytest.mark.parametrize("endpoint", ADMITTED, ids=by_name)
def test_no_room_for_a_key(bench: Bench, endpoint: Endpoint) -> None:
    bench.service.budgets.enter("alice")
    line = refused(bench, endpoint, body_of(endpoint), KEY)
    assert (line["status"], line["error"]) == (429, "rate_limit_exceeded")
    assert (line["key"], line["model"]) == ("alice", "tiny")


@pytest.mark.parametrize("endpoint", ADMITTED, ids=by_name)
def test_a_server_that_goes_down(bench: Bench, endpoint: Endpoint) -> None:
    bench.service.draining = True
    line = refused(bench, endpoint, body_of(endpoint), KEY)
    assert line["status"] in (503, 529)
    assert (line["key"], line["model"]) == ("alice", "tiny")


def test_tokens_that_a_key_does_not_have(tmp_path: Path) -> None:
    """Embeddings know their tokens before the budget does: a refusal neither records nor takes them."""
    (tmp_path / "keys").write_text("alice: a tokens_per_minute=10\n")
    bench = Bench(engine_info(supported=frozenset({"pooling"})), api_keys_file=str(tmp_path / "keys"))
    (endpoint,) = (e for e in ENDPOINTS if e.name == "embeddings")
    observer = bench.service.observer = Kept()

    async def main() -> int:
        app = ObservedRequests(application(bench), observer, NEVER)
        return (await ask(app, "POST", endpoint.paths[0], {"input": "x" * 50}, [KEY])).status

    assert asyncio.run(main()) == 429
    (line,) = observer.lines
    assert (line["status"], line["key"], line["prompt_tokens"], line["generated_tokens"]) == (429, "alice", 0, 0)
    assert bench.service.budgets.headers("alice")["x-ratelimit-remaining-tokens"] == "10"


async def test_what_waits_when_the_server_ends_has_used_nothing() -> None:
    bench = Bench(engine_info(max_batch_size=1))
    observer = bench.service.observer = Kept()
    app = ObservedRequests(application(bench), observer, NEVER)
    body = {"messages": [{"role": "user", "content": "hi"}]}
    tasks = [asyncio.ensure_future(ask(app, "POST", "/v1/chat/completions", body)) for _ in range(4)]
    # They begin in turns.
    await until(lambda: len(bench.engine.requests) + bench.service.admission(bench.model).waiting == len(tasks))
    running = len(bench.engine.requests)
    bench.service.close()
    for at in range(running):
        bench.engine.deliver(at, "a", "length")
    statuses = [(await task).status for task in tasks]
    assert statuses == [200] * running + [503] * (4 - running)
    used = [line["prompt_tokens"] for line in observer.lines if line["status"] == 503]
    assert used == [0] * (4 - running)
