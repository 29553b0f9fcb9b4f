"""What the index makes of answers; tests/triton/models/test_examples.py asks a real server."""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from openai_bls.triton_models.server.model_index import GrpcModelIndex, HttpModelIndex, ModelIndexError, model_index
from tests.unit.core_support import free_port

pytestmark = pytest.mark.anyio

RAISED = "TritonModelException: the engine is made of cheese\n\nAt:\n  /models/broken/1/model.py(34): initialize\n"
ANSWERS: dict[str, tuple[int, Any]] = {
    "/v2/repository/index": (
        200,
        [
            {"name": "a b/c", "version": "1", "state": "READY"},
            {"name": "a b/c", "version": "2", "state": "READY"},
            {"name": "loading", "version": "1", "state": "LOADING"},
            {"name": "taken out", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"},
            {"name": "broken", "version": "1", "state": "UNAVAILABLE", "reason": f"Internal: {RAISED}"},
            {"name": "not there"},
        ],
    ),
    "/v2/models/a%20b%2Fc/config": (200, {"name": "a b/c"}),
    "/v2/models/gone/config": (400, {"error": "no available versions"}),
    "/v2/models/unknown/config": (404, {"error": "unknown"}),
    "/v2/models/closed/config": (403, {"error": "This API is restricted"}),
}


class Triton(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, answer = ANSWERS[self.path]
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers["key"] == "value"
        self.do_GET()

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def index() -> Iterator[HttpModelIndex]:
    with HTTPServer(("127.0.0.1", 0), Triton) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield HttpModelIndex("127.0.0.1", server.server_port, {"key": "value"})
        server.shutdown()
        thread.join()


async def test_names_and_configurations(index: HttpModelIndex) -> None:
    assert await index.ready() == ["a b/c"]
    assert await index.failures() == {"broken": "the engine is made of cheese"}
    assert await index.configs(["a b/c", "gone", "unknown"]) == {"a b/c": {"name": "a b/c"}}


async def test_an_api_that_the_operator_closed(index: HttpModelIndex) -> None:
    with pytest.raises(ModelIndexError, match=r"403 .*/v2/models/closed/config: .*restricted"):
        await index.configs(["closed"])


async def test_an_answer_that_is_no_json(index: HttpModelIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http.client.HTTPResponse, "read", lambda response: b"<html>")
    with pytest.raises(ModelIndexError, match="/v2/repository/index: Expecting value"):
        await index.ready()


async def test_a_server_without_http_whose_grpc_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tritonclient.grpc", None)
    with pytest.raises(ModelIndexError, match=r"package .*tritonclient\.grpc"):
        await GrpcModelIndex("127.0.0.1:1").ready()


async def test_nobody_listens() -> None:
    port = free_port()
    with pytest.raises(ModelIndexError, match=f"HTTP port {port} "):
        await HttpModelIndex("127.0.0.1", port).ready()
    with pytest.raises(ModelIndexError, match=f"gRPC port 127.0.0.1:{port} "):
        await GrpcModelIndex(f"127.0.0.1:{port}").ready()


def test_no_server_to_ask() -> None:
    assert model_index(os.getpid()) is None
