from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from openai_bls.api.http.write_batcher import WriteBatcher
from tests.unit.core_support import WAIT_S


class Clock:
    """A loop whose clock the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.soon: list[Callable[[], Any]] = []
        self.later: list[tuple[float, Callable[[], Any]]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], Any]) -> None:
        self.soon.append(callback)

    def call_later(self, delay: float, callback: Callable[[], Any]) -> None:
        self.later.append((delay, callback))


def test_a_batch_is_at_once_unless_another_was_just_now() -> None:
    clock = Clock()
    write_batcher = WriteBatcher(clock)  # type: ignore[arg-type]
    calls: list[str] = []
    write_batcher.schedule(lambda: calls.append("a"))
    write_batcher.schedule(lambda: calls.append("b"))
    # One turn for both.
    assert (len(clock.soon), clock.later, calls) == (1, [], [])
    clock.soon.pop()()
    assert calls == ["a", "b"]
    write_batcher.schedule(lambda: calls.append("c"))
    write_batcher.schedule(lambda: calls.append("d"))
    ((delay, turn),) = clock.later
    assert clock.soon == []
    clock.now += delay
    turn()
    assert calls == ["a", "b", "c", "d"]
    # Part of the time between two batches has passed already.
    clock.now += delay / 4
    write_batcher.schedule(lambda: calls.append("x"))
    ((left, turn),) = clock.later[1:]
    assert left == pytest.approx(delay * 3 / 4)
    clock.now += left
    turn()
    clock.now += delay
    write_batcher.schedule(lambda: calls.append("e"))
    assert len(clock.soon) == 1


def test_one_that_raises_and_one_that_schedules_itself_disturb_no_other() -> None:
    async def main() -> None:
        write_batcher = WriteBatcher(asyncio.get_running_loop())
        calls: list[int] = []
        done = asyncio.Event()

        def broken() -> None:
            raise RuntimeError("bug")

        def again() -> None:
            calls.append(len(calls))
            if len(calls) == 3:
                done.set()
            else:
                write_batcher.schedule(again)

        write_batcher.schedule(broken)
        write_batcher.schedule(again)
        await asyncio.wait_for(done.wait(), WAIT_S)
        assert calls == [0, 1, 2]

    asyncio.run(main())
