from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.api.http.event_stream import DONE, KEEP_ALIVE, EventStream
from openai_bls.api.http.write_batcher import WriteBatcher
from openai_bls.core.errors import EngineError
from tests.unit.core_support import WAIT_S, events, until

NEVER = 3600.0


def event_stream(keep_alive_interval_s: float) -> EventStream:
    return EventStream(keep_alive_interval_s, WriteBatcher(asyncio.get_running_loop()))


class Connection:
    """The server's side of one connection."""

    def __init__(self, stream: EventStream) -> None:
        self.stream = stream
        self.messages: list[MutableMapping[str, Any]] = []
        self.ends = 0
        self.room = asyncio.Event()
        self.room.set()
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        stream.on_disconnect = self._on_disconnect
        self.task = asyncio.ensure_future(stream({"type": "http"}, self._incoming.get, self._send))

    def _on_disconnect(self) -> None:
        self.ends += 1

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        await self.room.wait()
        self.messages.append(message)

    def receive(self, kind: str) -> None:
        self._incoming.put_nowait({"type": kind})

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.messages[1:]]

    async def finish(self) -> None:
        await asyncio.wait_for(self.task, WAIT_S)


@pytest.fixture(autouse=True)
async def nothing_left_running(anyio_backend: str) -> AsyncIterator[None]:
    before = len(asyncio.all_tasks())
    yield
    await until(lambda: len(asyncio.all_tasks()) <= before)


async def test_events_then_done() -> None:
    stream = event_stream(NEVER)
    connection = Connection(stream)
    await until(lambda: connection.messages)
    stream.write(b"data: 1\n\n")
    await until(lambda: connection.bodies)
    stream.write(b"data: 2\n\n")
    stream.end()
    await connection.finish()
    start = connection.messages[0]
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    assert start["status"] == 200
    assert headers["content-type"].startswith("text/event-stream")
    assert "content-length" not in headers
    assert b"".join(connection.bodies) == b"data: 1\n\ndata: 2\n\n" + DONE
    # What comes together is sent in one piece.
    assert [message["more_body"] for message in connection.messages[1:]] == [True, False]


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=20))
@settings(deadline=None, max_examples=40)
def test_nothing_is_lost_or_reordered_however_slowly_the_reader_takes_it(steps: list[tuple[int, bool]]) -> None:
    async def test() -> None:
        stream = event_stream(NEVER)
        connection = Connection(stream)
        written: list[bytes] = []
        for count, room in steps:
            for _ in range(count):
                written.append(b"data: %d\n\n" % len(written))
                stream.write(written[-1])
            if room:
                connection.room.set()
            else:
                connection.room.clear()
            await asyncio.sleep(0)
        stream.end()
        connection.room.set()
        await connection.finish()
        assert b"".join(connection.bodies) == b"".join(written) + DONE

    asyncio.run(asyncio.wait_for(test(), WAIT_S))


async def test_silence_is_broken_by_comments_only() -> None:
    stream = event_stream(0.005)
    connection = Connection(stream)
    await until(lambda: len(connection.bodies) >= 3)
    stream.write(b"data: 1\n\n")
    stream.end()
    await connection.finish()
    assert connection.bodies[:3] == [KEEP_ALIVE] * 3
    whole = b"".join(connection.bodies)
    assert whole.endswith(b"data: 1\n\n" + DONE)
    assert events(whole) == ["1", "[DONE]"]


async def test_waiting_for_the_first_event_ends_after_the_interval() -> None:
    stream = event_stream(0.001)
    assert await stream.first() is None
    connection = Connection(stream)
    stream.fail(EngineError("late"))
    await connection.finish()
    assert events(b"".join(connection.bodies))[-1] == "[DONE]"


async def test_cancelled_while_it_waits_for_the_first_event() -> None:
    ends = []
    stream = event_stream(NEVER)
    stream.on_disconnect = lambda: ends.append(1)
    first = asyncio.ensure_future(stream.first())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert ends == [1]


async def test_cancelled_while_it_sends() -> None:
    stream = event_stream(NEVER)
    connection = Connection(stream)
    await until(lambda: connection.messages)
    connection.task.cancel()
    await asyncio.gather(connection.task, return_exceptions=True)
    assert connection.ends == 1
