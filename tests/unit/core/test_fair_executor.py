"""Turns of API keys at threads: by least work, then by the last turn; cancelled work, failures, the end."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.core.keys.fair_executor import FairExecutor

PATIENCE_S = 60


class Gate:
    """An executor of one thread, which waits until all work is submitted."""

    def __init__(self) -> None:
        self.executor = FairExecutor(1, "fair")
        self.order: list[str] = []
        self._open = threading.Event()
        self._begun = threading.Event()

    def hold(self, key: str) -> Future[None]:
        future = self.executor.submit(key, self._wait)
        assert self._begun.wait(PATIENCE_S)
        return future

    def add(self, key: str) -> Future[None]:
        return self.executor.submit(key, lambda: self.order.append(key))

    def release(self, *futures: Future[None]) -> None:
        self._open.set()
        for future in futures:
            future.result(PATIENCE_S)

    def _wait(self) -> None:
        self._begun.set()
        assert self._open.wait(PATIENCE_S)


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.release()
    made.executor.shutdown()


def test_a_key_that_comes_later_waits_for_one_unit(gate: Gate) -> None:
    gate.hold("alice")
    futures = [gate.add("alice") for _ in range(10)]
    futures.append(gate.add("bob"))
    gate.release(*futures)
    assert gate.order == ["bob"] + ["alice"] * 10


def test_keys_take_turns(gate: Gate) -> None:
    gate.hold("alice")
    futures = [gate.add(key) for key in ["alice"] * 3 + ["bob"] * 2 + ["carol"] * 2]
    gate.release(*futures)
    assert gate.order == ["bob", "carol", "alice", "bob", "carol", "alice", "alice"]


def test_cancelled_work_takes_no_turn(gate: Gate) -> None:
    gate.hold("alice")
    futures = [gate.add(key) for key in ("alice", "bob", "bob", "carol")]
    assert futures[1].cancel()
    assert futures[3].cancel()
    gate.release(futures[0], futures[2])
    assert gate.order == ["bob", "alice"]


def test_work_that_fails_leaves_the_thread(gate: Gate) -> None:
    failing = gate.executor.submit("alice", lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failing.result(PATIENCE_S)
    gate.release(gate.add("alice"))
    assert gate.order == ["alice"]


def test_after_the_end_nothing_begins(gate: Gate) -> None:
    running = gate.hold("alice")
    waiting = gate.add("bob")
    gate.executor.shutdown()
    assert waiting.cancelled()
    gate.release(running)
    with pytest.raises(RuntimeError):
        gate.add("bob")


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from("abcd"), max_size=30))
def test_while_several_keys_wait_none_is_two_turns_ahead(keys: list[str]) -> None:
    gate = Gate()
    gate.hold("z")
    gate.release(*[gate.add(key) for key in keys])
    assert Counter(gate.order) == Counter(keys)
    left, had = Counter(keys), Counter[str]()
    for key in gate.order:
        assert all(had[key] <= had[other] for other in left if left[other])
        had[key] += 1
        left[key] -= 1
    gate.executor.shutdown()
