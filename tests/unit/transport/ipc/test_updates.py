"""What an engine is asked and tells beside its tokens: its load, adapters, the prefix cache."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time

import msgspec
import pytest

from openai_bls.core.engine import EngineStats, PrefixCacheError
from openai_bls.core.engine_types import GenerationRequest, TokenDelta
from openai_bls.core.errors import InvalidRequestError, OverloadedError
from openai_bls.transport.ipc import server as server_module
from openai_bls.transport.ipc import sockets
from openai_bls.transport.ipc.frames import GOODBYE, Frames, ServerFrame
from openai_bls.transport.ipc.server import ExchangeServer
from tests.unit.core_support import WAIT_S, FakeEngine, exchange_address, until
from tests.unit.transport.ipc.test_exchange import World, world

__all__ = ["world"]


@pytest.mark.parametrize("world", [2], indirect=True)
async def test_the_engines_load_is_told_while_it_changes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_STATS_INTERVAL_S", 0.005)
    await until(lambda: all(client.stats is not None for client in world.clients))
    idle = world.client.stats
    assert idle is not None
    assert idle.running == 0
    listener = world.submit()
    await until(lambda: all(client.stats == world.engine.stats() != idle for client in world.clients))
    assert world.client.stats is not None
    assert world.client.stats.running == 1
    # Nothing is lost or repeated beside it.
    world.engine.step(TokenDelta(listener.request_id, [1, 2]))
    world.engine.step(TokenDelta(listener.request_id, [3], "stop"))
    await until(lambda: listener.reasons)
    assert listener.tokens == [1, 2, 3]
    await until(lambda: world.client.stats == idle)


def test_a_load_that_does_not_change_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_STATS_INTERVAL_S", 0.002)
    address = exchange_address()
    server = ExchangeServer(address)
    engine = FakeEngine(server.on_step)
    looks = threading.Semaphore(0)

    def stats() -> EngineStats:
        looks.release()
        return FakeEngine.stats(engine)

    monkeypatch.setattr(engine, "stats", stats)
    server.start(engine)
    with sockets.new_socket() as client:
        while client.connect_ex(address):
            time.sleep(0.001)
        parser = Frames()
        messages: list[bytes] = []
        for running in (0, 1):
            for request_id in range(running):
                engine.live[request_id] = GenerationRequest(request_id, [1], 5)
            while len(messages) < 2 + running:
                messages += parser.feed(client.recv(65536))
            for _ in range(6):
                assert looks.acquire(timeout=WAIT_S)
        server.close()
        while data := client.recv(65536):
            messages += parser.feed(data)
    assert messages.pop() == GOODBYE
    told = [msgspec.msgpack.decode(message, type=ServerFrame) for message in messages]
    assert told[0].info is not None
    assert [frame.stats and frame.stats.running for frame in told] == [None, 0, 1]


async def test_a_load_that_is_not_known(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that fails to tell it is asked again; that of a lost one is forgotten."""
    monkeypatch.setattr(server_module, "_STATS_INTERVAL_S", 0.002)
    known, failures = FakeEngine.stats, itertools.count()

    def stats(engine: FakeEngine) -> EngineStats:
        if next(failures) < 3:
            raise RuntimeError("not now")
        return known(engine)

    monkeypatch.setattr(FakeEngine, "stats", stats)
    await until(lambda: world.client.stats is not None)
    await world.hang_up()
    await until(lambda: world.client.stats is None)
    world.load()
    await until(lambda: world.client.stats is not None)


@pytest.mark.parametrize("world", [2], indirect=True)
async def test_adapters_are_loaded_and_everybody_is_told(world: World) -> None:
    listener = world.submit(1)
    await until(lambda: listener.request_id in world.engine.live)
    ids = [client.new_request_id() for client in world.clients]
    await world.client.update_lora("poet", "folder")
    # Whoever asked knows of it with the answer.
    assert ("poet",) in [info.lora_names for info in world.infos]
    await until(lambda: [info.lora_names for info in world.infos] == [(), (), ("poet",), ("poet",)])
    await world.clients[1].update_lora("poet", "")
    await until(lambda: [info.lora_names for info in world.infos[4:]] == [(), ()])
    for path, said in (("bad", "The adapter is bad."), ("broken", "The engine failed; its log says why.")):
        with pytest.raises(InvalidRequestError) as caught:
            await world.client.update_lora("clerk", path)
        assert caught.value.message == said
    # Requests go on meanwhile, and their ids go on counting.
    world.engine.step(TokenDelta(listener.request_id, [7], "length"))
    await until(lambda: listener.reasons == ["length"])
    assert all(client.new_request_id() > last for client, last in zip(world.clients, ids, strict=True))


async def test_the_prefix_cache_is_reset(world: World) -> None:
    await world.client.reset_prefix_cache()
    assert world.engine.prefix_resets == 1
    refusals: list[tuple[Exception, type[Exception], str]] = [
        (PrefixCacheError("it cannot"), InvalidRequestError, "It cannot."),
        (PrefixCacheError("it is held", busy=True), OverloadedError, "It is held."),
        (RuntimeError("secret"), InvalidRequestError, "The engine failed; its log says why."),
    ]
    for refusal, kind, said in refusals:
        world.engine.prefix_refusal = refusal
        with pytest.raises(kind) as caught:
            await world.client.reset_prefix_cache()
        assert str(caught.value) == said


async def test_an_engine_that_is_lost_while_it_loads_an_adapter(world: World) -> None:
    loading, lost = threading.Event(), threading.Event()

    def load(name: str, path: str) -> None:
        loading.set()
        lost.wait(WAIT_S)

    world.engine.load_lora = load  # type: ignore[method-assign]
    update = asyncio.ensure_future(world.client.update_lora("poet", "folder"))
    await until(loading.is_set)
    world.client._link._transport.abort()  # type: ignore[union-attr]
    with pytest.raises(OverloadedError):
        await update
    lost.set()
