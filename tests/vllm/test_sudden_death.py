"""Death of vLLM's engine core; the last test here, since nothing is answered after it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from openai_bls.core.engine_types import TokenDelta
from tests.vllm import cases
from tests.vllm.conftest import LIMIT_S, Served


def engine_cores(parent: int) -> list[int]:
    """Processes below `parent` that call themselves an engine core."""
    found, below = [], [parent]
    while below:
        for child in Path(f"/proc/{below.pop()}/task").glob("*/children"):
            for number in map(int, child.read_text().split()):
                below.append(number)
                if "EngineCore" in Path(f"/proc/{number}/cmdline").read_text():
                    found.append(number)
    return found


@pytest.mark.timeout(1800)
def test_a_dead_engine_core_ends_all_requests_with_an_error(vllm: Served) -> None:
    begun = threading.Event()

    def listen(deltas: Sequence[TokenDelta]) -> None:
        vllm.asker.on_step(deltas)
        begun.set()

    vllm.engine._on_step = listen
    live = [vllm.asker.submit(cases.asked(cases.prompt(i), 1900)) for i in range(32)]
    assert begun.wait(LIMIT_S)
    (core,) = engine_cores(os.getpid())
    os.kill(core, signal.SIGKILL)
    vllm.asker.wait(LIMIT_S)
    assert {answer.reason for answer in live} == {"error"}
    assert all(answer.error for answer in live)
    (late,) = vllm.ask([cases.asked(cases.prompt(0), 4)])
    assert late.reason == "error"
