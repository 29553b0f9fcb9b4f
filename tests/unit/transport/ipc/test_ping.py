"""Whether a model at the other end of a connection answers, has left or has died."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable

import uvloop

from openai_bls.transport.ipc.link import PartState
from openai_bls.transport.ipc.ping import PingClient, PingServer
from tests.unit.core_support import WAIT_S, exchange_address


class World:
    """A model, and a client of it."""

    def __init__(self) -> None:
        self.address = exchange_address()
        self.works = threading.Event()
        self.works.set()
        self.fails = False
        self.client = PingClient("postprocessing", self.address)
        self.load()

    def load(self) -> None:
        self.server = PingServer("postprocessing", self.address, self._work)
        self.server.start()

    def _work(self) -> None:
        assert self.works.wait(WAIT_S)
        if self.fails:
            raise RuntimeError("secret")

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.server.close)

    async def until(self, state: PartState) -> None:
        while await self.client.check(WAIT_S) != state:
            await asyncio.sleep(0.005)

    def die(self) -> None:
        """As the kernel does it for a process that is killed."""
        self.server._listener.close()
        for connection in list(self.server._connections):
            connection.shutdown(socket.SHUT_RDWR)


def play(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        world = World()
        try:
            await scenario(world)
        finally:
            world.works.set()
            await world.client.close()
            await world.close()
        assert await world.client.check(WAIT_S) == "absent"

    # Whose transports are stricter than those of asyncio, as in the model.
    uvloop.run(asyncio.wait_for(run(), WAIT_S))


def test_a_model_that_answers_leaves_and_comes_back() -> None:
    async def scenario(world: World) -> None:
        await world.until("up")
        await world.close()
        await world.until("absent")
        world.load()
        await world.until("up")

    play(scenario)


def test_a_model_that_dies_is_missed_until_it_is_back() -> None:
    async def scenario(world: World) -> None:
        await world.until("up")
        world.die()
        await world.until("lost")
        world.load()
        await world.until("up")

    play(scenario)


def test_a_model_that_hangs() -> None:
    async def scenario(world: World) -> None:
        await world.until("up")
        world.works.clear()
        assert await world.client.check(0.01) == "silent"
        world.works.set()
        await world.until("up")

    play(scenario)


def test_a_model_whose_work_fails_does_not_answer() -> None:
    async def scenario(world: World) -> None:
        await world.until("up")
        world.fails = True
        assert await world.client.check(0.01) == "silent"
        world.fails = False
        await world.until("up")

    play(scenario)


def test_a_model_that_dies_while_it_is_asked() -> None:
    async def scenario(world: World) -> None:
        await world.until("up")
        world.die()
        checks = []
        # The link hears of it a few turns of the loop after its transport.
        while world.client._link.open:
            checks.append(asyncio.ensure_future(world.client.check(WAIT_S)))
            await asyncio.sleep(0)
        assert set(await asyncio.gather(*checks)) <= {"up", "lost"}

    play(scenario)
