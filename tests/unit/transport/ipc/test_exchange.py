from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.core.engine_types import EngineInfo, GenerationRequest, TokenDelta
from openai_bls.core.errors import OverloadedError
from openai_bls.transport.ipc import frames
from openai_bls.transport.ipc import link as link_module
from openai_bls.transport.ipc.client import ExchangeClient
from openai_bls.transport.ipc.frames import LENGTH, pack
from openai_bls.transport.ipc.server import ExchangeServer
from tests.unit.core_support import WAIT_S, FakeEngine, engine_info, exchange_address, until


class World:
    """An engine, its server, and any number of clients on one loop."""

    engine: FakeEngine
    server: ExchangeServer

    def __init__(self, *, clients: int = 1) -> None:
        self.address = exchange_address()
        self.load()
        self.infos: list[EngineInfo] = []
        self.clients = [ExchangeClient(self.address, self.infos.append) for _ in range(clients)]
        self.client = self.clients[0]

    async def taken(self, count: int) -> list[Listener]:
        """Listeners of new requests that the engine has."""
        listeners = [self.submit() for _ in range(count)]
        await until(lambda: all(listener.request_id in self.engine.live for listener in listeners))
        return listeners

    def load(self, info: EngineInfo | None = None) -> None:
        self.server = ExchangeServer(self.address)
        self.engine = FakeEngine(self.server.on_step, info)
        self.server.start(self.engine)

    async def hang_up(self) -> None:
        """As if the engine's process had died: nobody is told of anything."""
        await asyncio.get_running_loop().run_in_executor(None, self.server.close)

    def submit(self, client: int = 0, prompt: Sequence[int] = (1,)) -> Listener:
        listener = Listener(self.clients[client].new_request_id())
        self.clients[client].submit(GenerationRequest(listener.request_id, list(prompt), 5), listener)
        return listener

    async def close(self) -> None:
        for client in self.clients:
            await client.close()
        self.engine.close()
        await self.hang_up()


class Listener:
    def __init__(self, request_id: int) -> None:
        self.request_id = request_id
        self.tokens: list[int] = []
        self.reasons: list[str] = []
        self.errors: list[str | None] = []

    def __call__(self, delta: TokenDelta) -> None:
        assert delta.request_id == self.request_id
        assert not self.reasons, "a delta after the last"
        self.tokens += delta.token_ids
        if delta.finish_reason is not None:
            self.reasons.append(delta.finish_reason)
            self.errors.append(delta.error)


@asynccontextmanager
async def running(clients: int = 1) -> AsyncIterator[World]:
    before = asyncio.all_tasks()
    world = World(clients=clients)
    try:
        await until(lambda: len(world.infos) == len(world.clients))
        yield world
    finally:
        await world.close()
    # anyio runs each fixture and test in a task of its runner.
    assert not [task for task in asyncio.all_tasks() - before if "TestRunner" not in repr(task)]


@pytest.fixture
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """With one client, or as many as its parameter says."""
    async with running(getattr(request, "param", 1)) as made:
        yield made


async def test_large_messages_both_ways(world: World) -> None:
    listener = world.submit(prompt=list(range(300_000)))
    await until(lambda: world.engine.live)
    assert world.engine.live[listener.request_id].prompt_token_ids == list(range(300_000))
    world.engine.step(TokenDelta(listener.request_id, list(range(300_000)), "stop"))
    await until(lambda: listener.reasons)
    assert listener.tokens == list(range(300_000))


async def test_a_listener_that_raises_disturbs_no_other(world: World) -> None:
    def broken(delta: TokenDelta) -> None:
        raise RuntimeError("bug")

    broken_id = world.client.new_request_id()
    world.client.submit(GenerationRequest(broken_id, [1], 5), broken)
    listener = world.submit()
    await until(lambda: len(world.engine.live) == 2)
    world.engine.step(TokenDelta(broken_id, [1]), TokenDelta(listener.request_id, [2]))
    await until(lambda: listener.tokens)
    # Also when the engine is lost, after which it is found again.
    await world.hang_up()
    await until(lambda: listener.reasons)
    world.load()
    await until(lambda: len(world.infos) == 2)


async def test_a_lost_engine_is_told_to_everybody_and_found_again(world: World) -> None:
    listeners = await world.taken(3)
    await world.hang_up()
    await until(lambda: all(listener.reasons for listener in listeners))
    assert [listener.reasons for listener in listeners] == [["cancelled"]] * 3
    assert all(listener.errors[0] for listener in listeners)
    assert world.client.live == 0
    # What the engine had running for this client is stopped.
    assert world.engine.live == {}
    late = world.submit()
    await until(lambda: late.reasons)
    assert late.reasons == ["cancelled"]
    world.load(engine_info(model_name="other"))
    await until(lambda: len(world.infos) == 2)
    assert world.infos[1].model_name == "other"
    (again,) = await world.taken(1)
    world.engine.step(TokenDelta(again.request_id, [5], "stop"))
    await until(lambda: again.reasons)
    assert again.tokens == [5]


async def test_a_request_waits_for_an_engine_that_is_being_reloaded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.client.ready()
    (lost,) = await world.taken(1)
    await world.hang_up()
    await until(lambda: lost.reasons)
    waiting = asyncio.ensure_future(world.client.ready())
    await asyncio.sleep(0)
    assert not waiting.done()
    world.load()
    await waiting
    (again,) = await world.taken(1)
    world.engine.step(TokenDelta(again.request_id, [5], "stop"))
    await until(lambda: again.reasons)
    # One that does not come back is not waited for in vain; a closing client not at all.
    await world.hang_up()
    monkeypatch.setattr(link_module, "_WAIT_S", 0.01)
    await until(lambda: not world.client.connected)
    with pytest.raises(OverloadedError, match="not available"):
        await world.client.ready()
    monkeypatch.setattr(link_module, "_WAIT_S", WAIT_S)
    waiting = asyncio.ensure_future(world.client.ready())
    await asyncio.sleep(0)
    await world.client.close()
    with pytest.raises(OverloadedError, match="shutting down"):
        await waiting


async def test_what_was_cancelled_at_the_old_engine_is_not_cancelled_at_the_new_one(world: World) -> None:
    """Both count their connections from the beginning, hence the same ids."""
    ids = [world.client.new_request_id() for _ in range(3)]

    def listen(delta: TokenDelta) -> None:
        # As a request of several sequences does when one has failed.
        for request_id in ids:
            world.client.cancel(request_id)

    for request_id in ids:
        world.client.submit(GenerationRequest(request_id, [1], 5), listen)
    await until(lambda: len(world.engine.live) == 3)
    await world.hang_up()
    world.load()
    await until(lambda: len(world.infos) == 2)
    listeners = [world.submit() for _ in range(4)]
    assert {listener.request_id for listener in listeners} & set(ids)
    await until(lambda: len(world.engine.submitted) == 4)
    for listener in listeners:
        world.engine.step(TokenDelta(listener.request_id, [1], "stop"))
    await until(lambda: all(listener.reasons for listener in listeners))
    assert [listener.reasons for listener in listeners] == [["stop"]] * 4
    assert world.engine.cancelled == []


async def test_a_reloaded_model_takes_the_address_over(world: World) -> None:
    old_server, old_engine = world.server, world.engine
    world.load()
    listener = world.submit()
    await until(lambda: old_engine.live)
    old_engine.close()
    await until(lambda: listener.reasons)
    await asyncio.get_running_loop().run_in_executor(None, old_server.close)
    await until(lambda: len(world.infos) == 2)
    await world.taken(1)


@pytest.mark.parametrize("world", [2], indirect=True)
async def test_closing_stops_the_engines_work_and_refuses_what_comes_after(world: World) -> None:
    listener, other = world.submit(0), world.submit(1)
    await until(lambda: len(world.engine.live) == 2)
    closing = asyncio.ensure_future(world.client.close())
    await asyncio.sleep(0)
    early = world.submit()
    await closing
    late = world.submit()
    await until(lambda: early.reasons and late.reasons)
    assert listener.reasons == early.reasons == late.reasons == ["cancelled"]
    await until(lambda: list(world.engine.live) == [other.request_id])
    assert other.reasons == []


async def test_local_requests_stand_beside_the_clients(world: World) -> None:
    listener = world.submit()
    deltas: list[TokenDelta] = []
    local = world.server.submit_local(lambda request_id: GenerationRequest(request_id, [1], 5), deltas.append)
    await until(lambda: len(world.engine.live) == 2)
    world.engine.step(TokenDelta(local, [1]), TokenDelta(listener.request_id, [2], "stop"))
    await until(lambda: listener.reasons)
    assert deltas == [TokenDelta(local, [1])]
    world.server.cancel_local(local)
    assert [delta.finish_reason for delta in deltas] == [None, "cancelled"]


# --- whatever happens in whatever order ---

ACTION = st.one_of(
    st.tuples(st.just("submit"), st.integers(0, 2)),
    st.tuples(st.just("step"), st.lists(st.integers(0, 30), min_size=1, max_size=4)),
    st.tuples(st.just("finish"), st.integers(0, 30)),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("yield"), st.just(0)),
)


@given(st.lists(ACTION, max_size=60))
@settings(deadline=None, max_examples=50)
def test_no_delta_is_lost_doubled_or_out_of_order(actions: list[tuple[str, Any]]) -> None:
    async def test(world: World) -> None:
        listeners: list[Listener] = []
        sent: dict[int, list[int]] = {}
        ended: set[int] = set()
        cancelled: set[int] = set()
        numbers = iter(range(10**6))

        def delta(at: int, reason: Any = None) -> list[TokenDelta]:
            request_id = listeners[at % len(listeners)].request_id
            if request_id in ended or request_id not in world.engine.live:
                return []
            if reason is not None:
                ended.add(request_id)
            token = next(numbers)
            sent[request_id].append(token)
            return [TokenDelta(request_id, [token], reason)]

        for name, value in actions:
            if name == "submit":
                listeners.append(world.submit(value))
                sent[listeners[-1].request_id] = []
            elif name == "yield":
                await asyncio.sleep(0.0005)
            elif listeners and name == "cancel":
                listener = listeners[value % len(listeners)]
                if not listener.reasons:
                    for client in world.clients:
                        client.cancel(listener.request_id)
                    cancelled.add(listener.request_id)
            elif listeners and name == "finish":
                world.engine.step(*delta(value, "stop"))
            elif listeners:
                world.engine.step(*(d for at in dict.fromkeys(value) for d in delta(at)))
        # Whatever still runs gets its end.
        alive = [li for li in listeners if li.request_id not in cancelled and li.request_id not in ended]
        await until(lambda: all(li.request_id in world.engine.live for li in alive))
        for listener in alive:
            world.engine.step(*delta(listeners.index(listener), "length"))
        await until(lambda: all(li.reasons for li in listeners if li.request_id not in cancelled))
        await until(lambda: not world.engine.live)
        for listener in listeners:
            if listener.request_id in cancelled:
                assert listener.tokens == sent[listener.request_id][: len(listener.tokens)]
            else:
                assert listener.tokens == sent[listener.request_id]
                assert len(listener.reasons) == 1
        assert all(client.live == 0 for client in world.clients)

    async def main() -> None:
        async with running(3) as world:
            await test(world)

    asyncio.run(main())


@pytest.mark.parametrize("world", [4], indirect=True)
async def test_many_clients_many_requests_and_an_engine_thread(world: World) -> None:
    listeners = [world.submit(at % 4) for at in range(200)]
    stop = threading.Event()

    def engine() -> None:
        counts: dict[int, int] = {}
        while not stop.is_set():
            deltas = []
            for request_id in list(world.engine.live):
                at = counts[request_id] = counts.get(request_id, -1) + 1
                deltas.append(TokenDelta(request_id, [at], "length" if at == 29 else None))
            if deltas:
                world.engine.step(*deltas)
            else:
                stop.wait(0.001)

    thread = threading.Thread(target=engine)
    thread.start()
    try:
        await until(lambda: all(listener.reasons for listener in listeners))
    finally:
        stop.set()
        thread.join()
    assert all(listener.tokens == list(range(30)) for listener in listeners)


@pytest.mark.parametrize("world", [1], indirect=True)
async def test_what_does_not_fit_into_a_frame_goes_alone_or_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 400)
    sizes = (100, 100, 500, 100, 100)
    listeners = [world.submit(prompt=[1] * size) for size in sizes]
    number = Listener(world.client.new_request_id())
    world.client.submit(GenerationRequest(number.request_id, [2**80], 5), number)
    taken = [listener for listener, size in zip(listeners, sizes, strict=True) if size == 100]
    await until(lambda: all(listener.request_id in world.engine.live for listener in taken))
    await until(lambda: listeners[2].reasons and number.reasons)
    assert (listeners[2].reasons, number.reasons) == (["error"], ["error"])
    for listener in taken:
        world.engine.step(TokenDelta(listener.request_id, [5], "stop"))
    await until(lambda: all(listener.reasons == ["stop"] for listener in taken))
    assert world.client.live == 0


async def test_an_engine_that_talks_nonsense_is_hung_up_on(caplog: pytest.LogCaptureFixture) -> None:
    """And connected to again, once it does no more."""
    address, infos = exchange_address(), list[EngineInfo]()
    connections: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        writer.write(LENGTH.pack(2**32 - 1) if len(connections) % 2 else pack(b"\xc1"))
        await reader.read()
        writer.close()

    talker = await asyncio.start_unix_server(accept, address)
    client = ExchangeClient(address, infos.append)
    await until(lambda: len(connections) >= 3)
    talker.close()
    server = ExchangeServer(address)
    engine = FakeEngine(server.on_step)
    server.start(engine)
    await until(lambda: infos)
    await client.close()
    engine.close()
    await asyncio.to_thread(server.close)
    assert len([line for line in caplog.messages if "cannot be read" in line]) == 1
