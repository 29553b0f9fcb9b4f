"""Statuses and headers of refused and late requests on /v1."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.api.http_support import asked
from tests.unit.core_support import Answered, Bench, engine_info

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
MESSAGE: dict[str, Any] = {**CHAT, "max_tokens": 5}
PATHS = {"/v1/chat/completions": CHAT, "/v1/responses": {"input": "hi"}, "/v1/messages": MESSAGE}


def late(path: str, body: dict[str, Any], header: str | None = None) -> tuple[Answered, Bench]:
    """A request that the engine never answers."""
    bench = Bench()
    headers = () if header is None else (("x-request-timeout", header),)
    return asked(bench, path, body, headers=headers), bench


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_a_timeout_ends_the_engines_work(path: str, stream: bool) -> None:
    for body, header in (({"timeout": 0.03}, None), ({}, "0.03"), ({"timeout": 0.03}, "50"), ({"timeout": 50}, "0.03")):
        answered, bench = late(path, {**PATHS[path], **body, "stream": stream}, header)
        if path == "/v1/messages" and stream and answered.status == 200:
            # It has begun as soon as the engine had the request.
            assert b"event: message_start" in answered.body
            error = json.loads(answered.body.rpartition(b"event: error\ndata: ")[2])["error"]
        else:
            assert answered.status == 504
            error = answered.json()["error"]
        assert error["type"] in ("server_error", "timeout_error")
        # A busy machine may not have come as far as the engine.
        assert len(bench.engine.cancelled) == len(bench.engine.requests) == len(bench.records)
        assert bench.service.in_progress == 0
        assert all(getattr(record.outcome, "code", None) == "deadline_exceeded" for record in bench.records)


class Never:
    """What is never done; begun on the event loop that waits for it."""

    def __await__(self) -> Any:
        return asyncio.get_running_loop().create_future().__await__()


def test_a_timeout_in_preprocessing() -> None:
    for path, body in (
        ("/v1/chat/completions", CHAT),
        ("/v1/tokenize", {"prompt": "hi"}),
        ("/v1/messages/count_tokens", CHAT),
        ("/v1/embeddings", {"input": "hi"}),
    ):
        bench = Bench()
        bench.prompts.hold = Never()
        assert asked(bench, path, body, headers=(("x-request-timeout", "0.01"),)).status == 504
        assert bench.engine.requests == []


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e3", "soon", "", "86401", "1_0", "\xb2"])
def test_a_header_that_is_no_time(value: str) -> None:
    answered, _ = late("/v1/chat/completions", CHAT, value)
    assert answered.status == 400
    assert answered.json()["error"]["param"] == "x-request-timeout"


KEY = (("authorization", "Bearer k"),)


def keyed(tmp_path: Path, limits: str) -> Bench:
    (tmp_path / "keys").write_text(f"k: k {limits}\n")
    return Bench(engine_info(supported=()), api_keys_file=str(tmp_path / "keys"))


@pytest.mark.parametrize("path", PATHS)
def test_a_refused_request_has_the_time_to_wait(tmp_path: Path, path: str) -> None:
    bench = keyed(tmp_path, "requests_per_minute=1")
    bench.service.budgets.enter("k").end(0)
    answered = asked(bench, path, PATHS[path], headers=KEY)
    assert answered.status == 429
    assert 58 <= int(answered.headers["retry-after"]) <= 60
    error = answered.json()["error"]
    if path == "/v1/messages":
        assert error["type"] == "rate_limit_error"
    else:
        assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
    assert answered.headers["x-ratelimit-limit-requests"] == "1"
    assert answered.headers["x-ratelimit-remaining-requests"] == "0"


def test_only_keys_with_limits_have_their_headers(tmp_path: Path) -> None:
    limited = asked(keyed(tmp_path, "tokens_per_minute=90"), "/v1/models", method="GET", headers=KEY)
    found = {name: value for name, value in limited.headers.items() if name.startswith("x-ratelimit")}
    assert found == {
        "x-ratelimit-limit-tokens": "90",
        "x-ratelimit-remaining-tokens": "90",
        "x-ratelimit-reset-tokens": "0s",
    }
    plain = asked(keyed(tmp_path, "weight=2"), "/v1/models", method="GET", headers=KEY)
    assert not any(name.startswith("x-ratelimit") for name in plain.headers)
