"""Connection that is made again, whatever becomes of the one before."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import msgspec
import pytest
import uvloop

from openai_bls.transport.ipc import sockets
from openai_bls.transport.ipc.frames import PING, pack
from openai_bls.transport.ipc.link import Link
from tests.unit.core_support import WAIT_S

HANG_UPS = 20


@pytest.mark.parametrize("make_loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def test_a_connection_that_is_hung_up_on_costs_no_other(
    monkeypatch: pytest.MonkeyPatch, make_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """Its descriptor is closed once: a second time it would be that of somebody else, who never hears of it."""
    others: list[tuple[int, int]] = []
    ends: list[socket.socket] = []

    def connect(_address: str) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        if len(ends) < HANG_UPS:
            theirs.close()
        else:
            theirs.sendall(pack(msgspec.msgpack.encode("hello")))
        ends.append(theirs)
        # What is opened by others meanwhile has the lowest number that is free.
        others.append(os.pipe())
        return ours

    async def run() -> None:
        link: Link[str] = Link("engine", "", str, lambda _message, transport: link.opened(transport), lambda: None)
        await asyncio.wait_for(link.ready(), WAIT_S)
        assert len(ends) == HANG_UPS + 1
        for number in {number for pair in others for number in pair}:
            os.fstat(number)
        link.send("there")
        await link.drained()
        link.close()
        await link.wait_closed()

    monkeypatch.setattr(sockets, "connect", connect)
    loop = make_loop()
    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
    assert ends[-1].recv(4096).startswith(pack(PING))
    ends[-1].close()
    for number in (number for pair in others for number in pair):
        os.close(number)
