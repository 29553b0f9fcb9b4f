"""The comparison of embeddings: every input is asked once, vectors come out of length 1, medians stand in the table."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.pool import ThreadPool
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from benchmarks.clients.target import http_target
from benchmarks_vllm.embeddings import LOADS, Load, Measured, measure, table, vectors
from benchmarks_vllm.vllm_serve.servers import Serving


@contextmanager
def server(asked: list[Any], status: int = 200) -> Iterator[Serving]:
    """A server whose vectors are [1, its input's length]."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(body["input"])
            vectors = [np.array([1, len(text)], np.float32).tobytes() for text in body["input"]]
            data = [{"embedding": base64.b64encode(vector).decode()} for vector in vectors]
            answer = json.dumps({"data": data, "usage": {"prompt_tokens": 7 * len(data)}}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *values: object) -> None:  # noqa: A002  # the base class's name
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        Thread(target=found.serve_forever, daemon=True).start()
        try:
            target = http_target("chat", f"http://127.0.0.1:{found.server_port}/v1", model="m")
            yield Serving("one", target, os.getpid(), Path(), 0.0)
        finally:
            found.shutdown()


@pytest.mark.parametrize("load", LOADS)
def test_every_input_is_asked_once(load: Load) -> None:
    asked: list[list[str]] = []
    with server(asked) as serving, ThreadPool(4) as pool:
        found = measure(pool, serving, load, 256, 3, 1)
    inputs = [text for request in asked for text in request]
    assert len(inputs) == 256
    assert {len(request) for request in asked} == {load.inputs}
    assert found.tokens_per_s > 0


def test_vectors_have_length_1() -> None:
    with server([]) as serving:
        found = vectors(serving, 3)
    assert found.shape == (16, 2)
    assert np.linalg.norm(found, axis=1) == pytest.approx(1)


def test_an_error_is_raised() -> None:
    with server([], status=503) as serving, ThreadPool(1) as pool, pytest.raises(OSError, match="503"):
        measure(pool, serving, LOADS[0], 256, 3, 1)


def test_medians_stand_in_the_table() -> None:
    load = LOADS[0]
    rates = {"vllm serve": (100.0, 300.0, 200.0), "ours": (400.0, 500.0, 300.0)}
    found = [Measured(name, load, rate, 1.0, 2.0, 3.0) for name, of in rates.items() for rate in of]
    rows = [line for line in table(found, "vllm serve").splitlines() if load.name in line]
    assert [[cell.strip() for cell in row.strip("|").split("|")][1:4] for row in rows] == [
        ["vllm serve", "200", "1.00"],
        ["ours", "400", "2.00"],
    ]
