"""Answers of more bytes than the server holds: an error on every door, a stream all the same, others as ever."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from openai_bls.launcher.testing import RunningServer, run_server
from tests.triton import triton_client
from tests.triton.conversations import HELLO
from tests.triton.triton_client import TritonError

pytestmark = pytest.mark.triton

ROOM = 1 << 20
# Some 600 bytes a token: several times the room.
LONG: dict[str, Any] = {"n": 8, "max_tokens": 1_000, "ignore_eos": True}
TOO_LARGE: list[tuple[str, dict[str, Any], str]] = [
    ("completions", {"prompt": "word " * 300, "echo": True, "logprobs": 20, "n": 32, "max_tokens": 0}, "logprobs"),
    ("completions", {"prompt": ["word " * 300] * 32, "echo": True, "logprobs": 20, "max_tokens": 1}, "logprobs"),
    ("completions", {"prompt": "a", "logprobs": 20, **LONG}, "logprobs"),
    ("chat/completions", {"messages": HELLO, "logprobs": True, "top_logprobs": 20, **LONG}, "top_logprobs"),
]


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[RunningServer]:
    env = {
        "OPENAI_BLS_ENGINE": "null",
        "OPENAI_BLS_ENGINE_MAX_BATCH_SIZE": "64",
        # So that a client reads a stream as fast as it comes.
        "OPENAI_BLS_ENGINE_NULL_STEP_DELAY_MS": "2",
        "OPENAI_BLS_MAX_BODY_BYTES_IN_FLIGHT": str(ROOM),
    }
    with run_server(repository, env=env) as running:
        yield running


@pytest.mark.parametrize(("path", "body", "param"), TOO_LARGE)
def test_an_answer_that_is_too_large(server: RunningServer, path: str, body: dict[str, Any], param: str) -> None:
    url = f"{server.openai_url}/{path}"
    response = httpx.post(url, json=body, timeout=60)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, "answer_too_large")
    with pytest.raises(TritonError) as caught:
        triton_client.chat(server.http_url, {"request": json.dumps(body)})
    assert (caught.value.status, caught.value.body["error"]["code"]) == (400, "answer_too_large")
    # It took nobody else's place, and nothing of it is left.
    small = {"prompt": "a", "max_tokens": 2, "logprobs": 20, "echo": True, "n": 2}
    assert httpx.post(f"{server.openai_url}/completions", json=small, timeout=60).status_code == 200


def test_a_stream_is_not_held(server: RunningServer) -> None:
    _, body, _ = TOO_LARGE[2]
    lines: list[str] = []
    with httpx.stream("POST", f"{server.openai_url}/completions", json={**body, "stream": True}, timeout=60) as stream:
        assert stream.status_code == 200
        lines += filter(None, stream.iter_lines())
    assert lines[-1] == "data: [DONE]"
    assert not [line for line in lines if '"error"' in line]
    assert sum(map(len, lines)) > ROOM
