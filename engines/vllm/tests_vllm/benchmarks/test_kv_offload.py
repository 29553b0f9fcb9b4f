"""Conversations that outgrow a KV cache: they take turns, what is found in a cache is counted, failures are told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from benchmarks_vllm.kv_offload import Answers, Talk, converse, table

_TALK = Talk(conversations=3, turns=4, at_once=1, words=2, answer_tokens=1)


@contextmanager
def _server(asked: list[list[Any]], breaks_at: int = 0) -> Iterator[str]:
    """A server that finds all but the last message in its cache; a request so long as `breaks_at` messages fails."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            messages = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
            asked.append(messages)
            if len(messages) == breaks_at:
                self.send_error(500)
                return
            details = {"cached_tokens": len(messages) - 1}
            chunks = [
                {"choices": [{"index": 0, "delta": {"content": "so"}}]},
                {"choices": [], "usage": {"prompt_tokens": len(messages), "prompt_tokens_details": details}},
            ]
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for chunk in chunks:
                self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, format: str, *values: object) -> None:  # noqa: A002  # the base class's name
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()


def test_conversations_take_turns() -> None:
    asked: list[list[Any]] = []
    with _server(asked) as url:
        found = asyncio.run(converse("a cache", url, _TALK))
    assert [len(messages) for messages in asked] == [1] * 3 + [3] * 3 + [5] * 3 + [7] * 3
    assert asked[3][:2] == [asked[0][0], {"role": "assistant", "content": "so"}]
    assert (found.prompt_tokens, found.cached_tokens, found.failed) == (48, 36, 0)
    assert found.hits == 0.75
    assert (len(found.first_token_s), len(found.later_first_token_s)) == (12, 9)
    assert "| a cache | 0.750 of 48 |" in table([found])


def test_a_failed_request_ends_its_conversation(capsys: pytest.CaptureFixture[str]) -> None:
    with _server([], breaks_at=3) as url:
        found = asyncio.run(converse("a cache", url, _TALK))
    assert (found.failed, found.prompt_tokens) == (3, 3)
    assert "conversation 0, turn 1" in capsys.readouterr().err


def test_nothing_asked() -> None:
    assert Answers("none").hits == 0
