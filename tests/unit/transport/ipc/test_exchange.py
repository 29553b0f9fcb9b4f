from __future__ import annotations

import asyncio
import itertools
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.core.engine import EngineStats, PrefixCacheError
from openai_bls.core.engine_types import EngineInfo, GenerationRequest, TokenDelta
from openai_bls.core.errors import InvalidRequestError, OverloadedError
from openai_bls.transport.ipc import frames
from openai_bls.transport.ipc import link as link_module
from openai_bls.transport.ipc import server as server_module
from openai_bls.transport.ipc.client import ExchangeClient
from openai_bls.transport.ipc.frames import LENGTH, ClientFrame, Frames, ServerFrame, pack
from openai_bls.transport.ipc.server import ExchangeServer
from tests.unit.core_support import WAIT_S, FakeEngine, engine_info, exchange_address


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


async def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.001)


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


# --- the server, byte by byte ---


class Peer:
    """A client by hand."""

    def __init__(self, address: str) -> None:
        self.socket = frames.new_socket()
        self.socket.settimeout(WAIT_S)
        deadline = time.monotonic() + WAIT_S
        while self.socket.connect_ex(address):
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def send(self, frame: ClientFrame) -> None:
        self.socket.sendall(pack(msgspec.msgpack.encode(frame)))

    def receive(self) -> ServerFrame:
        (length,) = LENGTH.unpack(self._read(LENGTH.size))
        return msgspec.msgpack.decode(self._read(length), type=ServerFrame)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            assert piece, "hung up"
            data += piece
        return data

    def ask(self) -> int:
        """Submit a request; its id."""
        request_id = self.receive().id_base + 1
        self.send(ClientFrame([GenerationRequest(request_id, [1], 5)]))
        return request_id

    def hung_up(self) -> bool:
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionResetError:
            pass
        return True


@contextmanager
def served() -> Iterator[tuple[FakeEngine, ExchangeServer, str]]:
    address = exchange_address()
    server = ExchangeServer(address)
    engine = FakeEngine(server.on_step)
    server.start(engine)
    yield engine, server, address
    engine.close()
    server.close()


def test_what_a_step_brings_is_one_frame_and_what_piles_up_is_one_too() -> None:
    with served() as (engine, _, address):
        peer = Peer(address)
        base = peer.receive().id_base
        peer.send(ClientFrame([GenerationRequest(base + 1, [1], 5), GenerationRequest(base + 2, [1], 5)]))
        engine.wait_for(lambda: len(engine.live) == 2)
        engine.step(TokenDelta(base + 1, [1]), TokenDelta(base + 2, [2]))
        assert [delta.token_ids for delta in peer.receive().deltas] == [[1], [2]]
        # Nobody reads; the engine does not wait.
        for at in range(20_000):
            engine.step(TokenDelta(base + 1, [at] * 20))
        engine.step(TokenDelta(base + 1, [], "stop"))
        deltas: list[TokenDelta] = []
        taken = 0
        while not deltas or deltas[-1].finish_reason is None:
            deltas += peer.receive().deltas
            taken += 1
        assert [delta.token_ids[:1] for delta in deltas] == [[at] for at in range(20_000)] + [[]]
        assert taken < 20_000
        peer.socket.close()


@pytest.mark.parametrize(
    "junk", [b"\x01\0\0\0\xc1", b"\x02\0\0\0{}", b"\x05\0", b"GET / HTTP/1.1\r\n\r\n", b"\x02\0\0\0\x91\x05"]
)
def test_a_client_that_talks_nonsense_loses_its_own_requests_only(junk: bytes) -> None:
    with served() as (engine, _, address):
        good, bad = Peer(address), Peer(address)
        good_id, bad_id = good.ask(), bad.ask()
        engine.wait_for(lambda: len(engine.live) == 2)
        bad.socket.sendall(junk)
        bad.socket.shutdown(socket.SHUT_WR)
        engine.wait_for(lambda: engine.cancelled == [bad_id])
        assert bad.hung_up()
        engine.step(TokenDelta(good_id, [1], "stop"))
        assert good.receive().deltas == [TokenDelta(good_id, [1], "stop")]
        for peer in (good, bad):
            peer.socket.close()


def test_a_request_that_the_engine_chokes_on_hangs_its_client_up() -> None:
    with served() as (engine, _, address):

        def submit(request: GenerationRequest) -> None:
            raise RuntimeError("bug")

        engine.submit = submit  # type: ignore[method-assign]
        peer = Peer(address)
        peer.ask()
        assert peer.hung_up()
        # The next one is served.
        other = Peer(address)
        assert other.receive().info is not None
        for each in (peer, other):
            each.socket.close()


def test_a_client_that_does_not_read_does_not_keep_the_model_from_unloading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_GRACE_S", 0.05)
    with served() as (engine, _, address):
        peer = Peer(address)
        request_id = peer.ask()
        engine.wait_for(lambda: engine.live)
        for _ in range(100):
            engine.step(TokenDelta(request_id, [1] * 100_000))
    peer.socket.close()


def test_what_is_pending_is_sent_before_hanging_up() -> None:
    with served() as (engine, _, address):
        peer = Peer(address)
        request_id = peer.ask()
        engine.wait_for(lambda: engine.live)
    assert peer.receive().deltas == [TokenDelta(request_id, [], "cancelled")]
    assert peer.hung_up()
    peer.socket.close()


def test_an_address_is_one_process_and_model() -> None:
    mine = frames.address("tensorrt_llm", os.getpid())
    assert mine == frames.address("tensorrt_llm", os.getpid())
    assert mine.startswith("\0")
    others = {frames.address("tensorrt_llm", pid) for pid in (1, os.getppid(), 2**22 + 1)}
    others.add(frames.address("other", os.getpid()))
    assert len({mine, *others}) == len(others) + 1
    # The longest that Linux takes.
    assert all(len(address) <= 107 for address in (mine, *others))


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
    with frames.new_socket() as client:
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
    assert messages.pop() == frames.GOODBYE
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
