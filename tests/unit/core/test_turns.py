"""Turns by key: no key waits for more than one work of each other, nothing is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core.errors import OverloadedError
from openai_bls.core.keys.turns import FairExecutor, FairLock, KeyQueue
from tests.unit.core_support import WAIT_S

KEYS = st.sampled_from("abc")
STEPS = st.lists(st.tuples(st.sampled_from(["push", "push", "pop", "discard"]), KEYS), max_size=60)


@given(STEPS)
def test_keys_take_turns(steps: list[tuple[str, str]]) -> None:
    queue: KeyQueue[tuple[str, int]] = KeyQueue()
    waiting: list[tuple[str, int]] = []
    passed = dict.fromkeys("abc", 0)
    for number, (step, key) in enumerate(steps):
        if step == "push":
            if not queue.waiting(key):
                passed[key] = 0
            waiting.append((key, number))
            queue.push(key, (key, number))
        elif step == "discard":
            mine = [item for item in waiting if item[0] == key]
            for item in mine[-1:]:
                queue.discard(key, item)
                waiting.remove(item)
        else:
            found = queue.pop()
            assert (found is None) == (not waiting)
            if found is not None:
                first = next(item for item in waiting if item[0] == found[0])
                assert found == first, "within a key in the order of coming"
                waiting.remove(found)
                passed[found[0]] = 0
                for other in {item[0] for item in waiting} - {found[0]}:
                    passed[other] += 1
                    assert passed[other] <= 2, "each other key once, and the next in turn"
        assert len(queue) == len(waiting)


@pytest.fixture
def executor() -> Iterator[FairExecutor]:
    made = FairExecutor(1, "test", max_waiting=50)
    yield made
    made.close()


def test_a_key_s_queue_is_not_another_s_wait(executor: FairExecutor) -> None:
    go, done = threading.Event(), []
    began = threading.Event()

    def first() -> None:
        began.set()
        go.wait(WAIT_S)

    executor.submit("alice", first)
    assert began.wait(WAIT_S)
    hers = [executor.submit("alice", lambda: done.append("alice")) for _ in range(50)]
    with pytest.raises(OverloadedError):
        executor.submit("alice", lambda: None)
    his = executor.submit("bob", lambda: done.append("bob"))
    for future in hers[1:]:
        assert future.cancel()
    go.set()
    his.result(WAIT_S)
    hers[0].result(WAIT_S)
    assert done == ["bob", "alice"]


@pytest.mark.parametrize("end", ["result", "error", "cancelled"])
def test_work_is_held_no_longer_than_it_takes(executor: FairExecutor, end: str) -> None:
    """Without a collection of garbage: what it holds may be the bytes of a large image."""

    class Work:
        def __call__(self) -> None:
            if end == "error":
                raise ValueError("no")

    gc.disable()
    try:
        go = threading.Event()
        blocking = executor.submit("a", lambda: go.wait(WAIT_S))
        work = Work()
        gone = threading.Event()
        weakref.finalize(work, gone.set)
        future = executor.submit("a", work)
        del work
        if end == "cancelled":
            future.cancel()
        go.set()
        blocking.result(WAIT_S)
        if end == "result":
            future.result(WAIT_S)
        if end == "error":
            # The traceback has the frames of the work.
            with pytest.raises(ValueError, match="no"):
                future.result(WAIT_S)
        del future, blocking
        executor.submit("a", lambda: None).result(WAIT_S)
        assert gone.wait(WAIT_S)
    finally:
        gc.enable()


def test_errors_and_the_end(executor: FairExecutor) -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        executor.submit("a", fail).result(WAIT_S)
    go = threading.Event()
    executor.submit("a", lambda: go.wait(WAIT_S))
    waiting = executor.submit("a", lambda: None)
    executor.close()
    go.set()
    assert waiting.cancelled()
    with pytest.raises(RuntimeError):
        executor.submit("a", lambda: None)


async def test_the_lock_goes_round() -> None:
    lock, order = FairLock(), []

    async def work(key: str) -> None:
        async with lock.turn(key):
            order.append(key)
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(work("alice")) for _ in range(5)] + [asyncio.create_task(work("bob"))]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == ["alice", "bob", "alice", "alice", "alice"]


@given(st.lists(KEYS, min_size=1, max_size=12), st.lists(st.integers(0, 11), max_size=8))
def test_the_lock_is_never_lost(keys: list[str], cancelled: list[int]) -> None:
    async def run() -> None:
        lock, inside = FairLock(), 0

        async def work(key: str) -> None:
            nonlocal inside
            async with lock.turn(key):
                inside += 1
                assert inside == 1
                try:
                    await asyncio.sleep(0)
                finally:
                    inside -= 1

        tasks = [asyncio.create_task(work(key)) for key in keys]
        for number in cancelled:
            await asyncio.sleep(0)
            tasks[number % len(tasks)].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with asyncio.timeout(WAIT_S), lock.turn("last"):
            pass

    asyncio.run(run())


@given(st.lists(KEYS, max_size=12), st.integers(1, 3), st.booleans())
def test_a_key_leaves_a_thread_to_others(asked: list[str], threads: int, several: bool) -> None:
    """Of works that all begin before any ends; and all are done in the end."""
    executor = FairExecutor(threads, "test", leaves_one=lambda: several)
    go = threading.Event()
    lock = threading.Lock()
    running: Counter[str] = Counter()
    most = max(1, threads - 1) if several else threads
    begun: list[str] = []
    due = min(threads, sum(min(count, most) for count in Counter(asked).values()))
    all_begun = threading.Event()

    def work(key: str) -> str:
        with lock:
            running[key] += 1
            begun.append(key)
            assert running[key] <= most
            if len(begun) >= due:
                all_begun.set()
        go.wait(WAIT_S)
        with lock:
            running[key] -= 1
        return key

    futures = [executor.submit(key, partial(work, key)) for key in asked]
    if asked:
        assert all_begun.wait(WAIT_S)
    assert len(begun) == due
    go.set()
    assert [future.result(WAIT_S) for future in futures] == asked
    executor.close()


def test_work_of_another_key_begins_while_one_s_is_long() -> None:
    executor = FairExecutor(2, "test", leaves_one=lambda: True)
    go = threading.Event()
    hers = [executor.submit("alice", lambda: go.wait(WAIT_S)) for _ in range(5)]
    assert executor.submit("bob", lambda: "heard").result(WAIT_S) == "heard"
    assert not any(future.done() for future in hers)
    go.set()
    assert all(future.result(WAIT_S) for future in hers)
    executor.close()
