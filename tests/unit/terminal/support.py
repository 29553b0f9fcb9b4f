"""Small server with OpenAI's API for the clients: what it answers is set by the test, what it was asked is kept."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Delta = dict[str, Any]
LARGE = {"id": "large", "input_modalities": ["text"]}


class FakeServer(ThreadingHTTPServer):
    """Streams `deltas` in answer to every chat completion."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.deltas: list[Delta] = [{"content": "Hello"}, {"content": " **you**"}]
        self.asked: list[dict[str, Any]] = []
        self.key = ""
        self.refuses = 0
        """Status of an error, for as many requests as there are."""
        self.breaks_off = False
        self.hold: threading.Event | None = None
        """The stream waits for it before its end."""
        self.holding = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: FakeServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class calls it so
        pass

    def do_GET(self) -> None:  # the base class calls it so
        if self._refuse_key():
            return
        self._json(200, {"object": "list", "data": [{"id": "small"}, LARGE]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self._refuse_key():
            return
        self.server.asked.append(body)
        if self.server.refuses:
            self._json(self.server.refuses, {"error": {"message": "it is too much", "type": "server_error"}})
            return
        usage = {"prompt_tokens": 5 + 2 * len(str(body["messages"][-1]["content"]).split()), "completion_tokens": 0}
        if not body.get("stream"):
            message = {"role": "assistant", "content": "x"}
            self._json(200, {"id": "1", "choices": [{"index": 0, "message": message}], "usage": usage})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        for delta in self.server.deltas:
            self._event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        if self.server.hold is not None:
            self.server.holding.set()
            self.server.hold.wait(20)
        if self.server.breaks_off:
            return
        self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        self._event({"choices": [], "usage": usage | {"completion_tokens": len(self.server.deltas)}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, event: dict[str, Any]) -> None:
        head = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "small"}
        try:
            self.wfile.write(f"data: {json.dumps(head | event)}\n\n".encode())
            self.wfile.flush()
        except OSError:
            pass

    def _refuse_key(self) -> bool:
        if not self.server.key or self.headers.get("authorization") == f"Bearer {self.server.key}":
            return False
        self._json(401, {"error": {"message": "wrong"}})
        return True

    def _json(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def fake_server() -> Iterator[FakeServer]:
    server = FakeServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        if server.hold is not None:
            server.hold.set()
        server.shutdown()
        thread.join()
        server.server_close()
