"""A worker of vLLM behind /v1 that is killed while streams run, and what becomes of them and of the server."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped]

from benchmarks.clients.driver import Clients
from benchmarks.clients.target import Plan
from benchmarks_vllm.vllm_serve.servers import Serving

_WORKER = "VLLM::Worker"
"""Begin of the name that vLLM gives a worker's process; its number comes last."""
_STREAMS = 64
_TOKENS = 2000
"""Of each stream: more than come before the kill."""
_BEFORE_S = 2.0
"""Seconds of streams before the kill."""
_PAUSE_S = 1.0
"""Seconds between two looks whether the server answers again."""


@dataclass(frozen=True)
class Death:
    """What a worker's death did."""

    worker: str
    """Name of its process."""
    streams: int
    failed: dict[str, int]
    """Streams that ended with an error, by its message."""
    told_s: float
    """Seconds from the kill to the last stream's end."""
    back_s: float | None
    """Seconds from the kill to the next answer; None if none came in time."""


def workers(pid: int) -> list[psutil.Process]:
    """Processes of vLLM's workers below process `pid`, the last rank last."""
    found: list[tuple[str, psutil.Process]] = []
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            name = " ".join(process.cmdline())
            if name.startswith(_WORKER):
                found.append((name, process))
    return [process for _, process in sorted(found, key=lambda one: one[0])]


def kill_worker(clients: Clients, serving: Serving, words: int, limit_s: float, say: Callable[[str], None]) -> Death:
    """Kill the last worker while streams run, and wait for the server.

    Args:
        clients: the client's process.
        serving: the server, whose processes are below its own.
        words: of a prompt.
        limit_s: seconds after which the server need not come back.
        say: called with a line of progress.

    Raises:
        LookupError: it has no workers.
    """
    found = workers(serving.pid)
    if not found:
        raise LookupError(f"no process below {serving.pid} is called {_WORKER}")
    name = " ".join(found[-1].cmdline()).strip()
    plan = Plan(serving.target, _STREAMS, _STREAMS, words, _TOKENS)
    with ThreadPoolExecutor(1) as pool:
        driven = pool.submit(clients.drive, plan)
        time.sleep(_BEFORE_S)
        killed = time.monotonic()
        os.kill(found[-1].pid, signal.SIGKILL)
        report = driven.result()
    say(f"{name} killed: {sum(report.failures.values())} of {_STREAMS} streams ended with an error")
    back = None
    while back is None and time.monotonic() < killed + limit_s:
        with contextlib.suppress(OSError):
            if not clients.drive(Plan(serving.target, 1, 1, words, 8)).failures:
                back = time.monotonic() - killed
                break
        time.sleep(_PAUSE_S)
    say(f"{name} killed: {'no answer' if back is None else f'an answer after {back:.1f} s'}")
    return Death(name, _STREAMS, dict(report.failures), report.ended - killed, back)
