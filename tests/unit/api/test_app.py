from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openai_bls import __version__
from openai_bls.core.engine import EngineStats
from openai_bls.core.engine_types import PromptResult
from openai_bls.transport.ipc.link import PartState
from tests.unit.api.connections import CHAT, STREAM_TEXT, Client, connected
from tests.unit.api.http_support import asked, over_socket
from tests.unit.core_support import Answered, Bench, events, until

STREAM = {**CHAT, "stream": True}


def one(
    method: str,
    path: str,
    body: bytes | dict[str, Any] = b"",
    *,
    headers: tuple[tuple[str, str], ...] = (),
    bench: Bench | None = None,
) -> Answered:
    """A request that needs no engine."""
    return asked(bench or Bench(), path, body, headers=headers, method=method)


def error_of(answered: Answered) -> dict[str, Any]:
    assert answered.headers["content-type"] == "application/json"
    body: dict[str, Any] = answered.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    inner: dict[str, Any] = body["error"]
    return inner


def test_models() -> None:
    listed = one("GET", "/v1/models")
    assert listed.status == 200
    assert listed.json()["object"] == "list"
    first, second = listed.json()["data"]
    assert first == {
        "id": "tiny",
        "object": "model",
        "created": 7,
        "owned_by": "openai_bls",
        "root": "tiny",
        "parent": None,
        "max_model_len": 1000,
        "task": "generate",
        "input_modalities": ["text"],
    }
    assert (second["id"], second["root"]) == ("openai_bls", "tiny")
    assert one("GET", "/v1/models/tiny").json() == first
    assert one("GET", "/v1/models/a/b", bench=Bench(model_aliases="a/b")).json()["id"] == "a/b"
    for_anthropic = (("anthropic-version", "2023-06-01"),)
    page = one("GET", "/v1/models", headers=for_anthropic).json()
    assert page == {
        "data": [
            {
                "type": "model",
                "id": name,
                "display_name": name,
                "created_at": "1970-01-01T00:00:07Z",
                "lifecycle": "active",
                "max_input_tokens": 1000,
            }
            for name in ("tiny", "openai_bls")
        ],
        **{"first_id": "tiny", "last_id": "openai_bls", "has_more": False},
    }
    assert one("GET", "/v1/models/tiny", headers=for_anthropic).json() == page["data"][0]
    # As the SDK's beta client asks.
    for query in ("beta=true", "beta=true&limit=20"):
        assert one("GET", f"/v1/models?{query}", headers=for_anthropic).json() == page
    assert one("GET", "/v1/models/tiny?beta=true", headers=for_anthropic).json() == page["data"][0]
    unknown = one("GET", "/v1/models/org/other", headers=for_anthropic)
    assert (unknown.status, unknown.json()["type"], unknown.json()["error"]["type"]) == (
        404,
        "error",
        "not_found_error",
    )
    missing = one("GET", "/v1/models/org/other")
    assert (missing.status, error_of(missing)["code"]) == (404, "model_not_found")


def test_version_and_health() -> None:
    assert one("GET", "/version").json() == {"version": __version__, "engine": "fake 1"}
    assert one("GET", "/health", bench=Bench(api_key="k1")).json() == {"status": "ok", "models": {}}

    draining = Bench()
    draining.service.draining = True
    health = one("GET", "/health", bench=draining)
    assert (health.status, health.json()) == (503, {"status": "draining", "models": {}})
    busy = one("POST", "/v1/chat/completions", CHAT, bench=draining)
    assert (busy.status, error_of(busy)["type"]) == (503, "server_error")
    assert busy.headers["retry-after"]


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize(("connected", "failed"), [(True, False), (True, True), (False, False)])
def test_health_is_the_engines_too(connected: bool, failed: bool, others: int) -> None:
    """A failed engine is missed always; one that is not loaded only if it is the last."""

    bench = Bench()
    for _ in range(others):
        bench.service.models.add(Bench().model)
    bench.engine.connected = connected
    bench.engine.stats = EngineStats(0, 0, 0.0, 1, 1, failed=failed) if connected else None
    answer = one("GET", "/health", bench=bench)
    status = "engine failed" if failed else "ok" if connected or others else "engine not loaded"
    assert (answer.status, answer.json()) == (200 if status == "ok" else 503, {"status": status, "models": {}})


class Part:
    """A model in a given state."""

    def __init__(self, state: PartState) -> None:
        self.state = state

    async def check(self, timeout_s: float) -> PartState:
        return self.state


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("up", "ok"),
        ("absent", "ok"),
        ("lost", "preprocessing has died"),
        ("silent", "preprocessing does not answer"),
        (
            "foreign",
            "preprocessing is not connected: a process of another user is in its place; the server's log says which",
        ),
    ],
)
def test_health_is_that_of_every_model(state: PartState, status: str) -> None:
    bench = Bench()
    bench.service.readiness.add("tensorrt_llm", Part("up"))
    bench.service.readiness.add("preprocessing", Part(state))
    answer = one("GET", "/health/ready", bench=bench)
    assert answer.json() == {"status": status, "models": {"tensorrt_llm": "up", "preprocessing": state}}
    assert answer.status == (200 if status == "ok" else 503)
    assert one("GET", "/health/live", bench=bench).status == 200
    metrics = one("GET", "/metrics", bench=bench).body.decode()
    line = f'openai_bls_model_up{{triton_model="preprocessing"}} {float(state == "up")}'
    assert (line in metrics) == (state != "absent")


def test_a_model_without_its_preprocessing_answers_nothing() -> None:
    bench = Bench()
    bench.prompts.connected = False
    answer = one("GET", "/health", bench=bench)
    assert (answer.status, answer.json()["status"]) == (503, "preprocessing not loaded")


def test_paths_and_methods_that_do_not_exist() -> None:
    assert one("GET", "/v1/nothing").status == 404
    error_of(one("POST", "/v1/nothing"))
    wrong = one("GET", "/v1/chat/completions")
    assert wrong.status == 405
    assert wrong.headers["allow"] == "POST"
    # Of all routes with that path.
    several = one("PUT", "/v1/responses/resp_1")
    assert (several.status, several.headers["allow"]) == (405, "DELETE, GET, HEAD")
    error_of(wrong)
    assert len(one("GET", "/" + "x" * 100_000).body) < 1000


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/nope", "/v1/completions"])
def test_request_ids_go_in_and_out(path: str) -> None:
    method = "POST" if path.endswith("completions") else "GET"
    given = one(method, path, headers=(("X-Request-Id", "abc-1"),))
    assert given.headers["x-request-id"] == "abc-1"
    made = {one(method, path, headers=h).headers["x-request-id"] for h in ((), (("X-Request-Id", "a b"),), ())}
    assert len(made) == 3
    assert all(value.startswith("req_") for value in made)


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("Bearer", 401),
        ("Bearer wrong", 401),
        ("Bearer ké", 401),
        ("Basic k1", 401),
        ("k1", 401),
        ("Bearer k1", 200),
        ("bearer  k1 ", 200),
    ],
)
def test_authentication(header: str | None, status: int) -> None:
    headers = (("Authorization", header),) if header is not None else ()
    answered = one("GET", "/v1/models", headers=headers, bench=Bench(api_key="k1"))
    assert answered.status == status
    if status == 401:
        assert error_of(answered)["code"] == "invalid_api_key"


@pytest.mark.parametrize(("key", "status"), [("a1", 200), ("b1", 200), ("own", 200), ("c1", 401), ("", 401)])
def test_keys_of_a_file(tmp_path: Path, key: str, status: int) -> None:
    (tmp_path / "keys").write_text("alice: a1\nbob: b1\n")
    for headers in ((("authorization", f"Bearer {key}"),), (("x-api-key", key),)):
        bench = Bench(api_key="own", api_keys_file=str(tmp_path / "keys"))
        assert asked(bench, "/v1/models", headers=headers, method="GET").status == status


@pytest.mark.parametrize("body", [CHAT, STREAM])
def test_what_preprocessing_refuses_and_a_bug(body: dict[str, Any]) -> None:
    bench = Bench()
    bench.prompts.result = PromptResult(error="no such role", param="messages")
    refused = one("POST", "/v1/chat/completions", body, bench=bench)
    assert (refused.status, error_of(refused)["param"]) == (400, "messages")
    bench.prompts.result = RuntimeError("secret path /x")
    broken = one("POST", "/v1/chat/completions", body, bench=bench)
    assert (broken.status, "secret" in error_of(broken)["message"]) == (500, False)


# --- with an engine ---


def test_a_streamed_completion() -> None:
    bench = Bench()
    body = {"prompt": "x", "stream": True, "echo": True}
    answered = asked(bench, "/v1/completions", body, lambda: bench.engine.deliver(0, "a", "length"))
    chunks = [json.loads(chunk) for chunk in events(answered.body)[:-1]]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "xa"


@pytest.mark.parametrize(("invalid", "status"), [(True, 400), (False, 500)])
def test_an_error_before_the_first_token_has_its_own_status(invalid: bool, status: int) -> None:
    for body in (CHAT, STREAM):
        bench = Bench()
        answered = asked(
            bench,
            "/v1/chat/completions",
            body,
            lambda: bench.engine.deliver(0, "", "error", error="x", invalid=invalid),  # noqa: B023
        )
        assert answered.status == status
        assert error_of(answered)["message"] == "x"


# --- web pages ---


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("text/plain", 415),
        (None, 415),
        ("application/x-www-form-urlencoded", 415),
        ("Application/JSON; charset=x", 200),
    ],
)
def test_a_web_page_declares_its_json(kind: str | None, status: int) -> None:
    """A browser asks before it sends that, and sends the rest for any page."""
    headers = [("Origin", "https://evil.example")] + ([("Content-Type", kind)] if kind else [])
    bench = Bench()
    feed = (lambda: bench.engine.deliver(0, "a", "length")) if status == 200 else None
    answer = asked(bench, "/v1/chat/completions", CHAT, feed, headers=headers)
    assert answer.status == status
    assert "access-control-allow-origin" not in answer.headers


async def ask_as_page(port: int, origin: str, *lines: str) -> bytes:
    client = await Client.connect(port)
    client.send("\r\n".join([*lines, "Host: x", f"Origin: {origin}", "Connection: close"]).encode() + b"\r\n\r\n")
    received = (await client.reader.read()).lower()
    client.writer.close()
    return received


async def test_origins_that_may_use_it() -> None:
    preflight = [
        "OPTIONS /v1/chat/completions HTTP/1.1",
        "Access-Control-Request-Method: POST",
        "Access-Control-Request-Headers: authorization,content-type",
    ]
    async with over_socket(cors_origins="https://a.example, https://b.example") as (_, port):
        for origin in ("https://a.example", "https://b.example"):
            answer = await ask_as_page(port, origin, *preflight)
            assert answer.startswith(b"http/1.1 200")
            assert f"access-control-allow-origin: {origin}\r\n".encode() in answer
            assert b"authorization" in answer
            assert b"access-control-allow-origin" in await ask_as_page(port, origin, "GET /v1/models HTTP/1.1")
        assert b"access-control-allow-origin" not in await ask_as_page(port, "https://c.example", *preflight)
    async with over_socket() as (_, port):
        answer = await ask_as_page(port, "https://a.example", *preflight)
        assert answer.startswith(b"http/1.1 405")
        assert b"access-control-allow-origin" not in answer


async def test_streams_of_web_pages() -> None:
    async with connected(cors_origins="*") as (bench, _, client):
        client.post(STREAM_TEXT, "Origin: https://a.example", "Connection: close", "Content-Type: application/json")
        await until(lambda: bench.engine.requests)
        bench.engine.deliver(0, "a", "length")
        received = await client.reader.read()
        assert b"access-control-allow-origin: *" in received
        assert b"data: [DONE]" in received
