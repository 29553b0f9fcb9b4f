"""Worker processes: what takes too much is ended, in C code too, and the next job is done all the same."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from openai_bls.core.errors import EngineError
from openai_bls.core.processes.machine import IMAGE_DECODER
from openai_bls.core.processes.worker_pool import Work, Worker, WorkerLostError, WorkerPool

MODULE = """
import time

def load():
    pass

def answer(source, target):
    code = source.readline().decode()
    try:
        result = str(eval(code))
    except MemoryError:
        result = "memory"
    target.write(result.encode() + b"\\n")
    return result != "last"
"""


def pool_of(folder: Path, *, cpu_s: float = 20.0, time_limit_s: float = 60.0) -> WorkerPool:
    module = folder / "job.py"
    module.write_text(MODULE, encoding="utf-8")
    return WorkerPool(Work(IMAGE_DECODER, module, [], cpu_s, time_limit_s, 64 << 20), at_rest=1)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[WorkerPool]:
    made = pool_of(tmp_path)
    yield made
    made.close()


def ask(code: str, worker: Worker) -> str:
    worker.send([code.encode(), b"\n"])
    found = b""
    while not found.endswith(b"\n"):
        found += worker.read(1)
    return found[:-1].decode()


def answer(pool: WorkerPool, code: str) -> str:
    return pool.run(functools.partial(ask, code))


def test_one_process_does_all_jobs(pool: WorkerPool) -> None:
    pids = {answer(pool, "__import__('os').getpid()") for _ in range(3)}
    assert pids == {str(pid) for pid in pool.pids}


def test_memory_is_bounded(pool: WorkerPool) -> None:
    assert answer(pool, "'a' * 10**9") == "memory"
    assert answer(pool, "len('a' * 10**6)") == "1000000"


@pytest.mark.parametrize("code", ["sum(range(10**11))", "[0 for _ in iter(int, 1)]", "max(range(10**11))"])
def test_a_budget_of_cpu_time_holds_in_c_code_too(tmp_path: Path, code: str) -> None:
    pool = pool_of(tmp_path, cpu_s=0.2)
    try:
        for _ in range(2):
            with pytest.raises(WorkerLostError) as caught:
                answer(pool, code)
            assert caught.value.reason == "cpu"
        # Of each job, and not of the process.
        for _ in range(3):
            assert answer(pool, "sum(range(2 * 10**6))") == "1999999000000"
    finally:
        pool.close()


def test_what_sleeps_is_ended_too(tmp_path: Path) -> None:
    pool = pool_of(tmp_path, time_limit_s=0.2)
    try:
        with pytest.raises(WorkerLostError) as caught:
            answer(pool, "time.sleep(3600)")
        assert caught.value.reason == "time"
    finally:
        pool.close()


def test_a_process_that_dies_is_replaced_before_it_is_wanted(pool: WorkerPool) -> None:
    first = int(answer(pool, "__import__('os').getpid()"))
    os.kill(first, signal.SIGKILL)
    with pytest.raises(WorkerLostError) as caught:
        answer(pool, "1")
    assert caught.value.reason == "died"
    (second,) = pool.pids
    assert second != first
    assert answer(pool, "2") == "2"
    assert pool.pids == [second]


def test_a_job_may_spend_its_process(pool: WorkerPool) -> None:
    def last(worker: Worker) -> str:
        worker.is_spent = True
        return ask("'last'", worker)

    assert pool.run(last) == "last"
    assert answer(pool, "2") == "2"


def test_an_error_in_the_midst_of_an_answer_spends_the_process(pool: WorkerPool) -> None:
    def broken(worker: Worker) -> None:
        worker.send([b"3\n"])
        raise ValueError

    def whole(worker: Worker) -> None:
        ask("3", worker)
        raise KeyError

    with pytest.raises(ValueError):  # noqa: PT011
        pool.run(broken, whole=(KeyError,))
    first = pool.pids
    with pytest.raises(KeyError):
        pool.run(whole, whole=(KeyError,))
    assert answer(pool, "4") == "4"
    assert pool.pids == first


def test_closing_ends_the_processes(pool: WorkerPool) -> None:
    pid = int(answer(pool, "__import__('os').getpid()"))
    pool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(EngineError):
        answer(pool, "1")
