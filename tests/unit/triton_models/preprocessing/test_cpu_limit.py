"""The limit on CPU time: what exceeds it ends, what does not is left alone, and nothing is hit afterwards."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from openai_bls.triton_models.preprocessing import cpu_limit
from openai_bls.triton_models.preprocessing.cpu_limit import CpuLimit, CpuLimitError


def spin(seconds: float) -> float:
    """Take CPU time on this thread, and catch what code of a template may catch."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        try:
            sum(range(20))
        except Exception:
            continue
    return seconds


def test_what_waits_takes_no_cpu_time() -> None:
    """As a thread that other processes starve."""
    limit, done = CpuLimit(), threading.Event()
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(limit.run, lambda: done.wait(60), 0.02)
        with pytest.raises(CpuLimitError):
            pool.submit(limit.run, lambda: spin(60), 0.05).result()
        done.set()
        assert waiting.result()


@pytest.mark.parametrize("more", [0.0, 60.0])
def test_an_exception_that_is_lost_comes_again(more: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter drops what is raised in `__del__`, or in a callback of the garbage collector."""
    lost: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: lost.append(unraisable.exc_type))

    class Long:
        def __del__(self) -> None:
            spin(60)

    def work() -> float:
        Long()
        return spin(more)

    with pytest.raises(CpuLimitError):
        CpuLimit().run(work, 0.05)
    assert len(lost) == 1
    spin(0.2)  # here it would hit what has no limit


def test_each_run_has_its_result_or_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it ends just as its time is over."""
    monkeypatch.setattr(cpu_limit, "_TICK_S", 0.0)
    limit = CpuLimit()

    def many(_: int) -> set[str]:
        found = set()
        for i in range(120):
            seconds = 0.0008 + 0.0001 * (i % 5)
            try:
                assert limit.run(lambda: spin(seconds), 0.001) == seconds  # noqa: B023
                found.add("result")
            except CpuLimitError:
                found.add("error")
            spin(0.0002)  # here it would hit what has no limit
        return found

    with ThreadPoolExecutor(3) as pool:
        assert set.union(*pool.map(many, range(3))) == {"result", "error"}
    with pytest.raises(ValueError, match="its own"):
        limit.run(lambda: int("its own"), 1)
    assert not limit._runs
