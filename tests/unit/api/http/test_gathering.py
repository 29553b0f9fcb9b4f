from __future__ import annotations

import asyncio
from typing import Any, cast

from openai_bls.api.http.connection.transports import GatheringTransport


class Recorder:
    """Transport that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.closing = False
        self.write = self.told.append

    def close(self) -> None:
        self.told.append("close")

    def write_eof(self) -> None:
        self.told.append("eof")

    def is_closing(self) -> bool:
        return self.closing

    get_extra_info = can_write_eof = abort = is_closing


async def test_what_is_written_in_one_turn_goes_out_together() -> None:
    """What is written at once comes after what waits, and nothing is lost at an end."""
    recorder = Recorder()
    told = recorder.told
    transport = GatheringTransport(cast("asyncio.Transport", recorder), asyncio.get_running_loop())
    transport.write(b"head")
    transport.write(b"body")
    assert told == []
    await asyncio.sleep(0)
    assert told == [b"headbody"]
    told.clear()
    transport.write_now(b"first")
    transport.write(b"head")
    transport.write_now(b"event")
    await asyncio.sleep(0)
    assert told == [b"first", b"headevent"]
    told.clear()
    transport.write(b"last")
    transport.write_eof()
    transport.write(b"more")
    transport.close()
    assert told == [b"last", "eof", b"more", "close"]


async def test_nothing_is_written_to_a_client_that_has_gone() -> None:
    recorder = Recorder()
    transport = GatheringTransport(cast("asyncio.Transport", recorder), asyncio.get_running_loop())
    transport.write(b"head")
    recorder.closing = True
    await asyncio.sleep(0)
    transport.write_now(b"event")
    assert recorder.told == []
