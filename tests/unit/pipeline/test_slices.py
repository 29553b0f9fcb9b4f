"""Slices: they are the whole, each with few lines, and a turn of the event loop does one."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.pipeline.slices import (
    FEW_LINES,
    MAX_SLICE_LINES,
    SLICE_LINES,
    STEP_BYTES,
    Turns,
    has_few_lines,
    slice_end,
)

DATA = st.lists(
    st.tuples(st.sampled_from([b"\r\n", b"1\r\nx\r\n", b"a:\r\n", b"x" * 5000, b"\n"]), st.integers(0, 3000)),
    max_size=4,
).map(lambda parts: b"".join(part * (count if len(part) < 99 else count % 20) for part, count in parts))


@given(DATA)
def test_slices_are_the_whole_and_each_has_few_lines(data: bytes) -> None:
    at, slices = 0, 0
    while at < len(data):
        end = slice_end(data, at)
        assert at < end <= len(data)
        lines = data.count(b"\r", at, end)
        assert lines <= MAX_SLICE_LINES
        # As many as fit.
        assert end == len(data) or lines >= SLICE_LINES
        at, slices = end, slices + 1
    assert slices <= data.count(b"\r") // SLICE_LINES + 1
    assert has_few_lines(data) == (data.count(b"\r") <= FEW_LINES)


def test_few_lines_of_a_little() -> None:
    assert has_few_lines(b"\r\n" * FEW_LINES)
    assert not has_few_lines(b"\r\n" * (FEW_LINES + 1))
    assert has_few_lines(b"x" * STEP_BYTES * 9)


async def test_work_takes_turns() -> None:
    turns, done = Turns(), []
    left = {"a": 3, "b": 1}

    def work(name: str) -> bool:
        done.append(name)
        left[name] -= 1
        return left[name] > 0

    turns.take(lambda: work("a"))
    turns.take(lambda: work("b"))
    waiting = asyncio.ensure_future(turns.wait())
    for count in range(1, 4):
        await asyncio.sleep(0)
        assert len(done) == count
    await waiting
    await asyncio.sleep(0)
    assert (done, len(turns)) == (["a", "b", "a", "a"], 0)


async def test_work_that_fails_holds_up_no_other() -> None:
    turns, faults = Turns(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context["exception"]))

    def fail() -> bool:
        raise ValueError

    turns.take(fail)
    given_up = asyncio.ensure_future(turns.wait())
    async with asyncio.timeout(5):
        await asyncio.sleep(0)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        await turns.wait()
    assert [type(fault) for fault in faults] == [ValueError]
    assert not len(turns)


async def test_keys_take_turns() -> None:
    turns, done = Turns(), []
    left = {"a": 2, "b": 2, "c": 2}

    def work(name: str) -> bool:
        done.append(name)
        left[name] -= 1
        return left[name] > 0

    for name, key in (("a", "alice"), ("b", "alice"), ("c", "bob")):
        turns.take(partial(work, name), key)
    for _ in range(6):
        await asyncio.sleep(0)
    assert (done, len(turns)) == (["a", "c", "b", "c", "a", "b"], 0)
