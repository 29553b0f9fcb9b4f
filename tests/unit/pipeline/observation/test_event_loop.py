"""Stalls of the event loop, by a clock that jumps."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.observation.event_loop import (
    INTERVAL_S,
    LOGGED_STALL_S,
    SHORTEST_STALL_S,
    EventLoopWatch,
)
from openai_bls.pipeline.observation.observer import Observer


async def watched(observer: Observer, seconds: float) -> list[float]:
    """Stalls that are counted while the clock jumps by so many seconds beyond the interval, then stands."""
    found: list[float] = []
    looked = asyncio.Event()
    times = itertools.chain([0.0, seconds + INTERVAL_S], itertools.repeat(seconds + INTERVAL_S))

    def clock() -> float:
        now = next(times)
        if now:
            looked.set()
        return now

    task = asyncio.create_task(EventLoopWatch(observer, found.append, clock).run())
    await looked.wait()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return found


@pytest.mark.parametrize("seconds", [0.0, SHORTEST_STALL_S / 2])
def test_a_timer_that_is_nearly_on_time_is_no_stall(seconds: float) -> None:
    assert asyncio.run(watched(Observer(), seconds)) == []


def work(context: RequestContext) -> None:
    context.begin_work()
    context.end_work()


def test_a_stall_is_counted_and_a_long_one_logged_with_the_endpoints_at_work(
    caplog: pytest.LogCaptureFixture,
) -> None:
    observer = Observer()

    async def main() -> None:
        request, ended = observer.begin("POST", "/a"), observer.begin("POST", "/b")
        request.endpoint, ended.endpoint = "responses", "embeddings"
        work(ended)
        request.begin_work()
        assert await watched(observer, LOGGED_STALL_S / 2) == pytest.approx([LOGGED_STALL_S / 2])
        assert not caplog.records
        work(ended)
        assert await watched(observer, 2 * LOGGED_STALL_S) == pytest.approx([2 * LOGGED_STALL_S])
        request.end_work()

    asyncio.run(main())
    (line,) = caplog.messages
    assert line.endswith(": embeddings, responses")
    assert observer.take_endpoints() == ["responses"]
    assert observer.take_endpoints() == []
