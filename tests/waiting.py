"""Waiting for what a server or a program does or says, and streams of a server that have begun."""

from __future__ import annotations

import os
import re
import select
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

import httpx
import pytest

from openai_bls.launcher.testing import RunningServer
from tests.triton.conversations import HELLO

PATIENCE_S = 60.0
"""Seconds far beyond what any step takes: a test that waits so long has failed."""


def until(condition: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """What `condition` gives, once it is true."""
    deadline, pause = time.monotonic() + patience_s, threading.Event()
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        pause.wait(0.02)
    return value


def lines_until(stream: IO[str] | None, sign: str) -> list[str]:
    """Lines of a process up to the one with `sign`, without which the test fails."""
    assert stream is not None
    lines = []
    for line in stream:
        lines.append(line)
        if sign in line:
            return lines
    pytest.fail("".join(lines[-30:]))


class Spoken:
    """Process of a test, and what it has said.

    Args:
        process: process whose standard output is a pipe.
        patience_s: seconds for what it is to say next.
    """

    def __init__(self, process: subprocess.Popen[bytes], patience_s: float = 2 * PATIENCE_S) -> None:
        self.process = process
        self.output = ""
        self._patience_s = patience_s

    def read_until(self, pattern: str) -> None:
        """Read until the output has a match."""
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        deadline = time.monotonic() + self._patience_s
        while not re.search(pattern, self.output):
            ready, _, _ = select.select([descriptor], [], [], max(0, deadline - time.monotonic()))
            piece = os.read(descriptor, 65536) if ready else b""
            assert piece, f"no {pattern!r} in:\n{self.output}"
            self.output += piece.decode(errors="replace")

    def finish(self) -> int:
        """Read to its end; its exit status."""
        rest, _ = self.process.communicate(timeout=self._patience_s)
        self.output += rest.decode(errors="replace")
        return self.process.returncode


class Streams:
    """Streamed chat completions of a server with a null engine, all of which have begun.

    Args:
        server: server, or the one behind a launcher.
        count: number of streams.
        tokens: tokens of each, if nothing ends it before.
    """

    def __init__(self, server: RunningServer, count: int, tokens: int = 2000) -> None:
        self._url = f"{server.openai_url}/chat/completions"
        self._body = {"messages": HELLO, "max_tokens": tokens, "stream": True, "ignore_eos": True}
        self._begun = threading.Semaphore(0)
        self._threads = ThreadPoolExecutor(count)
        self._ends = [self._threads.submit(self._read) for _ in range(count)]
        for _ in range(count):
            assert self._begun.acquire(timeout=PATIENCE_S)

    def _read(self) -> bytes:
        received = b""
        with httpx.stream("POST", self._url, json=self._body, timeout=PATIENCE_S) as response:
            for piece in response.iter_bytes():
                if not received:
                    self._begun.release()
                received += piece
        return received

    def ends(self) -> list[bytes]:
        """All that each has received, down to its end."""
        with self._threads:
            return [end.result(PATIENCE_S) for end in self._ends]

    def finish(self) -> None:
        """Check that each has come to its end."""
        for received in self.ends():
            assert received.endswith(b"data: [DONE]\n\n")
            assert received.count(b'"finish_reason":"length"') == 1

    def fail(self) -> None:
        """Check that each has ended with an error."""
        for received in self.ends():
            assert b'data: {"error":' in received
            assert received.endswith(b"data: [DONE]\n\n")
