"""Server of canned answers, for the tests of the siege."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from openai_bls.launcher.tritonserver.ports import Ports
from tests.torture.attacks.bob import HEARD
from tests.torture.doors import HOST
from tests.triton.conftest import ANSWERED

Answer = Callable[[str, dict[str, Any]], tuple[int, bytes]]


def answered(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    """What a good server says."""
    if body.get("stream"):
        event = json.dumps({"choices": [{"delta": {"content": ANSWERED.answer[:3]}}]})
        return 200, f"data: {event}\n\ndata: [DONE]\n\n".encode()
    if "response_format" in body:
        name = body["response_format"]["json_schema"]["name"]
        return 200, json.dumps({"choices": [{"message": {"content": json.dumps({name: "yes"})}}]}).encode()
    return 200, json.dumps({"id": "1", "path": path, "text": HEARD, "count": 1}).encode()


@contextmanager
def server(answers: Answer) -> Iterator[Ports]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            received = self.rfile.read(int(self.headers.get("content-length", 0)))
            is_json = received.startswith(b"{")
            status, text = answers(self.path, json.loads(received) if is_json else {})
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = answer  # noqa: N815

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer((HOST, 0), Handler) as running:
        threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        port = running.server_address[1]
        yield Ports(port, port, port, port)
        running.shutdown()


def refused(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    return 503, json.dumps({"error": {"code": "overloaded"}}).encode()


def other(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    if body.get("stream"):
        return 200, b'data: {"choices": [{"delta": {"content": "?!?"}}]}\n\n'
    return 200, json.dumps({"choices": [{"message": {"content": '{"alice": 1}'}}]}).encode()
