"""Routers of other people's as processes in an environment of their own, which `make router` makes."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[3]
BIN = ROOT / ".venv-router" / "bin"
COMMANDS = {
    "vllm-router": (str(BIN / "vllm-router"), "--log-level", "debug"),
    "sglang-router": (str(BIN / "python"), "-m", "sglang_router.launch_router", "--log-level", "debug"),
}
WAIT_S = 120.0


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.contextmanager
def running_router(name: str, workers: Sequence[str], policy: str, log: Path, *arguments: str) -> Iterator[str]:
    """A router before servers until the block ends: its URL.

    Args:
        name: one of `COMMANDS`.
        workers: URLs of the servers.
        policy: how it chooses one of them.
        log: file for its log.
        arguments: further ones of its command line.
    """
    if not BIN.exists():
        pytest.skip("there is no .venv-router: `make router` makes it")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        *(*COMMANDS[name], "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())),
        *("--worker-urls", *workers, "--policy", policy, "--worker-startup-check-interval", "1"),
        *("--health-check-interval-secs", "1"),
        *arguments,
    ]
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, "NO_COLOR": "1"})
    try:
        deadline = time.monotonic() + WAIT_S
        while True:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{url}/v1/models", timeout=10).status_code == 200:
                    break
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
        yield url
    finally:
        process.kill()
        process.wait()
