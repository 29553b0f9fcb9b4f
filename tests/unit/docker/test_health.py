"""Health check of a container without /v1."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.paths import ROOT
from tests.unit.api.http_support import over_socket

CODE = json.dumps({"error": json.dumps({"error": {"message": "Incorrect", "code": "invalid_api_key"}})})


class Triton(BaseHTTPRequestHandler):
    """tritonserver whose `openai_bls` wants the key `secret`."""

    def do_GET(self) -> None:
        self._answer(200, "")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert body["endpoint"] == "tokenize"
        if body.get("api_key") == "secret":
            self._answer(200, "{}")
        else:
            self._answer(400, CODE)

    def log_message(self, *args: object) -> None:
        pass

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Triton) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.mark.parametrize(("key", "status"), [("secret", 0), ("", 0), ("wrong", 1)])
def test_a_key(port: int, key: str, status: int) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docker" / "health.py"],
        env={"OPENAI_BLS_HTTP_PORT": "0", "OPENAI_BLS_TRITON_HTTP_PORT": str(port), "OPENAI_BLS_API_KEY": key},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (status, "")
    assert ("invalid_api_key" in done.stdout) == bool(status)


@pytest.mark.parametrize("tls", [True, False])
async def test_v1_over_https(port: int, tmp_path: Path, tls: bool) -> None:
    """The certificate is of another name than the address that is asked."""
    settings = Authority(tmp_path).settings()
    async with over_socket(**settings) as (_, openai_port):
        environment = {"OPENAI_BLS_HTTP_PORT": str(openai_port), "OPENAI_BLS_TRITON_HTTP_PORT": str(port)}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            ROOT / "docker" / "health.py",
            env=environment | ({"OPENAI_BLS_SSL_CERTFILE": settings["ssl_certfile"]} if tls else {}),
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await process.communicate()
    assert process.returncode == (0 if tls else 1)
    assert tls or b"HTTPS" in said
