from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from openai_bls.triton_models.server.drain import DrainGuard
from tests.unit.core_support import WAIT_S, free_port, until


class FrontEnd:
    """What the guard knows of Triton's HTTP front end: connections are held, /v2/health/ready is answered."""

    def __init__(self) -> None:
        self.port = free_port()
        self.answer = b"HTTP/1.1 200 OK\r\n\r\n"
        self.held: set[asyncio.StreamWriter] = set()
        self.holds = 0
        self.probes = 0
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def shut(self) -> None:
        """Take no more connections; those that are open stay."""
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.held.add(writer)
        self.holds += 1
        try:
            if await reader.read(1000):
                self.holds -= 1
                self.probes += 1
                writer.write(self.answer)
        finally:
            self.held.discard(writer)
            writer.close()


@pytest.fixture
async def front_end() -> FrontEnd:
    return FrontEnd()


@pytest.fixture
def drained() -> list[str]:
    return []


@pytest.fixture
async def guard(front_end: FrontEnd, drained: list[str]) -> AsyncIterator[DrainGuard]:
    address = ("127.0.0.1", front_end.port)
    made = DrainGuard(address, lambda: drained.append("now"), linger_s=0.02, probe_interval_s=0.04)
    made.start()
    yield made
    await made.stop()
    await until(lambda: not front_end.held)


async def test_a_connection_is_held_while_requests_are_in_progress(
    front_end: FrontEnd, guard: DrainGuard, drained: list[str]
) -> None:
    await front_end.open()
    assert front_end.holds == 0
    guard.set_in_progress(1)
    await until(lambda: front_end.holds == 1)
    guard.set_in_progress(2)
    await until(lambda: front_end.probes > 2)
    guard.set_in_progress(1)
    assert front_end.holds == 1
    assert len(front_end.held) >= 1
    guard.set_in_progress(0)
    await until(lambda: not front_end.held)
    guard.set_in_progress(1)
    await until(lambda: front_end.holds == 2)
    assert drained == []


async def test_a_server_that_takes_no_more_connections_is_draining_and_still_held(
    front_end: FrontEnd, guard: DrainGuard, drained: list[str]
) -> None:
    await front_end.open()
    guard.set_in_progress(1)
    await until(lambda: front_end.holds == 1)
    await front_end.shut()
    await until(lambda: drained)
    assert len(front_end.held) == 1
    guard.set_in_progress(0)
    await until(lambda: not front_end.held)
    assert drained == ["now"]


async def test_a_server_that_closes_at_once_is_draining(
    front_end: FrontEnd, guard: DrainGuard, drained: list[str]
) -> None:
    front_end.answer = b""
    await front_end.open()
    guard.set_in_progress(1)
    await until(lambda: drained)


@pytest.mark.parametrize("status", [b"200 OK", b"400 Bad Request", b"404 Not Found"])
async def test_a_server_that_answers_is_not_draining(
    front_end: FrontEnd, guard: DrainGuard, drained: list[str], status: bytes
) -> None:
    front_end.answer = b"HTTP/1.1 " + status + b"\r\n\r\n"
    await front_end.open()
    guard.set_in_progress(1)
    await until(lambda: front_end.probes > 3)
    assert drained == []


async def test_a_front_end_that_opens_later_is_held_all_the_same(
    front_end: FrontEnd, guard: DrainGuard, drained: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    guard.set_in_progress(1)
    await until(lambda: caplog.records)
    await front_end.open()
    await until(lambda: front_end.holds == 1)
    assert drained == []
    assert len(caplog.records) == 1


async def test_a_cancellation_that_gets_lost_stops_the_guard_all_the_same(
    front_end: FrontEnd, guard: DrainGuard, drained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `asyncio.wait_for` may lose one before Python 3.12."""
    asked = asyncio.Event()

    async def answer_instead(guard: DrainGuard) -> bool:
        asked.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return True

    monkeypatch.setattr(DrainGuard, "_ready", answer_instead)
    await front_end.open()
    guard.set_in_progress(1)
    await asyncio.wait_for(asked.wait(), WAIT_S)
    stopping = asyncio.ensure_future(guard.stop())
    await until(stopping.done)
    assert drained == []


async def test_without_an_address_there_is_no_guard() -> None:
    guard = DrainGuard(None, lambda: pytest.fail("drained"))
    guard.start()
    guard.set_in_progress(1)
    await guard.stop()
