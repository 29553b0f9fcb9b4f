"""Checks of the models behind `openai_bls`: shared by concurrent callers, and kept for a second."""

from __future__ import annotations

import asyncio

import pytest

from openai_bls.pipeline.models.readiness import Readiness
from openai_bls.transport.ipc.link import PartState


class Part:
    def __init__(self) -> None:
        self.state: PartState = "up"
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def check(self, timeout_s: float) -> PartState:
        self.asked += 1
        await self.may_answer.wait()
        return self.state


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("openai_bls.pipeline.models.readiness.time.monotonic", lambda: now[0])
    return now


def test_an_answer_counts_for_a_second(clock: list[float]) -> None:
    async def scenario() -> None:
        found, part = Readiness(), Part()
        found.add("engine", part)
        await found.check()
        part.state = "silent"
        clock[0] += 0.9
        await found.check()
        assert (part.asked, found.problem) == (1, None)
        clock[0] += 0.2
        await found.check()
        assert (part.asked, found.problem) == (2, "engine does not answer")
        part.state = "absent"
        clock[0] += 2
        await found.check()
        assert (found.states, found.problem) == ({"engine": "absent"}, None)

    asyncio.run(scenario())


def test_concurrent_callers_share_a_check_and_one_that_leaves_does_not_end_it(clock: list[float]) -> None:
    async def scenario() -> None:
        found, part = Readiness(), Part()
        found.add("engine", part)
        part.may_answer.clear()
        first, second = (asyncio.ensure_future(found.check()) for _ in range(2))
        while not part.asked:
            await asyncio.sleep(0)
        first.cancel()
        part.may_answer.set()
        await second
        assert (part.asked, found.states) == (1, {"engine": "up"})

    asyncio.run(scenario())
