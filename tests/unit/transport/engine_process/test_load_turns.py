"""Engines that load at the same time: side by side as far as memory goes."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openai_bls.core.settings import EngineSettings
from openai_bls.engines import registry
from openai_bls.engines.plugin import LoadMemory
from openai_bls.transport.engine_process import load_turns, loading
from openai_bls.transport.engine_process.load_turns import turn

GIB = 1 << 30
WAIT_S = 60.0


def plenty() -> int:
    return 100 * GIB


class Waits(logging.Handler):
    """Event that is set by the log line of an engine that waits."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.told = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self.told.set()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    handler = Waits()
    monkeypatch.setattr(load_turns.logger, "handlers", [handler])
    load_turns.logger.setLevel(logging.INFO)
    return handler


def start(model: str, memory: LoadMemory, free: Callable[[], int], inside: Callable[[], Any]) -> Future[Any]:
    """What `inside` gives, called in another thread on the engine's turn."""
    found: Future[Any] = Future()

    def load() -> None:
        try:
            with turn(os.getpid(), model, memory, free):
                found.set_result(inside())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=load, daemon=True).start()
    return found


def test_engines_load_side_by_side(waits: Waits) -> None:
    """Each reaches a point in its load that none passes before all are there."""
    together = threading.Barrier(6, timeout=WAIT_S)
    loads = [start(f"tensorrt_llm_{n}", LoadMemory(10 * GIB), plenty, together.wait) for n in range(6)]
    assert sorted(load.result(WAIT_S) for load in loads) == list(range(6))
    assert not waits.told.is_set()


@pytest.mark.parametrize(
    ("memory", "free", "reason"),
    [
        (LoadMemory(6 * GIB), 11 * GIB, "it takes up to 6.0 GiB, the others 6.0 GiB, and 11.0 GiB are free"),
        (LoadMemory(GIB, on_gpu=True), 100 * GIB, "the size of a KV cache goes by what is free of the GPU"),
    ],
)
def test_engines_that_do_not_fit_load_one_after_another(
    waits: Waits, memory: LoadMemory, free: int, reason: str
) -> None:
    let_end = threading.Event()
    loading_now: list[str] = []

    def first() -> None:
        loading_now.append("first")
        inside.set()
        assert let_end.wait(WAIT_S)
        loading_now.remove("first")

    inside = threading.Event()
    one = start("tensorrt_llm", memory, lambda: free, first)
    assert inside.wait(WAIT_S)
    two = start("tensorrt_llm_small", memory, lambda: free, lambda: list(loading_now))
    assert waits.told.wait(WAIT_S)
    assert waits.lines == [f"tensorrt_llm_small waits for tensorrt_llm to load: {reason}"]
    # One that fits is not held up by one that does not.
    assert start("tensorrt_llm_null", LoadMemory(0), lambda: free, lambda: list(loading_now)).result(WAIT_S) == [
        "first"
    ]
    let_end.set()
    one.result(WAIT_S)
    assert two.result(WAIT_S) == []


def test_an_engine_alone_never_waits() -> None:
    assert start("tensorrt_llm", LoadMemory(500 * GIB), lambda: 0, lambda: "loaded").result(WAIT_S) == "loaded"


def test_a_killed_load_is_no_load(waits: Waits) -> None:
    script = (
        "import sys; from openai_bls.transport.engine_process.load_turns import *\n"
        f"with turn({os.getpid()}, 'killed', LoadMemory({GIB}), lambda: 0): print('in', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"in\n"
        next_one = start("tensorrt_llm", LoadMemory(GIB), lambda: 0, lambda: "loaded")
        assert waits.told.wait(WAIT_S)
        assert not next_one.done()
        other.kill()
        assert next_one.result(WAIT_S) == "loaded"


def test_load_engine_takes_its_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    together = threading.Barrier(2, timeout=WAIT_S)
    engine = SimpleNamespace(load=lambda: lambda *_: together.wait())
    monkeypatch.setattr(registry, "_choose", lambda *_: registry._Choice(engine, None, None))  # type: ignore[arg-type]
    seen = []

    def spy(pid: int, model: str, memory: LoadMemory) -> Any:
        seen.append((pid, model))
        return turn(pid, model, memory)

    monkeypatch.setattr(load_turns, "turn", spy)

    def load(name: str) -> int:
        loaded = loading.load_engine(tmp_path / name / "1", lambda _: None, {}, EngineSettings())
        number: Any = loaded.engine
        return int(number)

    with ThreadPoolExecutor() as pool:
        assert sorted(pool.map(load, ("tensorrt_llm", "tensorrt_llm_a"))) == [0, 1]
    assert sorted(seen) == [(os.getppid(), "tensorrt_llm"), (os.getppid(), "tensorrt_llm_a")]
