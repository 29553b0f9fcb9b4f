"""The exchange's server, byte by byte."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from openai_bls.core.engine_types import GenerationRequest, LoraUpdate, TokenDelta, UpdateResult
from openai_bls.transport.ipc import connection as connection_module
from openai_bls.transport.ipc import frames, listener, sockets
from openai_bls.transport.ipc import server as server_module
from openai_bls.transport.ipc.frames import LENGTH, PING, ClientFrame, ServerFrame, pack
from openai_bls.transport.ipc.server import ExchangeServer
from tests.unit.core_support import WAIT_S, FakeEngine, exchange_address
from tests.waiting import until


class Peer:
    """A client by hand."""

    def __init__(self, address: str) -> None:
        self.socket = sockets.new_socket()
        self.socket.settimeout(WAIT_S)
        deadline = time.monotonic() + WAIT_S
        while self.socket.connect_ex(address):
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def send(self, frame: ClientFrame) -> None:
        self.socket.sendall(pack(msgspec.msgpack.encode(frame)))

    def receive(self) -> ServerFrame:
        return msgspec.msgpack.decode(self.message(), type=ServerFrame)

    def update(self) -> UpdateResult:
        """The next answer to an update."""
        while (found := self.receive().update) is None:
            pass
        return found

    def message(self) -> bytes:
        """The next message but reports of the engine's load, which come by the clock."""
        while True:
            (length,) = LENGTH.unpack(self._read(LENGTH.size))
            message = self._read(length)
            if message == PING:
                return message
            frame = msgspec.msgpack.decode(message, type=ServerFrame)
            if frame.stats is None or frame.update is not None:
                return message

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
    monkeypatch.setattr(connection_module, "_GRACE_S", 0.05)
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


def test_a_client_that_says_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "GREETING_S", 0.01)
    with served() as (_, _, address):
        silent = Peer(address)
        assert silent.receive().info is not None
        assert silent.hung_up()
        silent.socket.close()


def test_connections_have_a_bound(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(server_module, "MOST_CONNECTIONS", 3)
    with served() as (engine, server, address):
        held = [Peer(address) for _ in range(3)]
        request_id = held[0].ask()
        assert all(peer.receive().info is not None for peer in held[1:])
        for _ in range(20):
            one_more = Peer(address)
            assert one_more.hung_up()
            one_more.socket.close()
        assert len([line for line in caplog.messages if "one more is closed" in line]) == 1
        engine.wait_for(lambda: request_id in engine.live)
        engine.step(TokenDelta(request_id, [1], "stop"))
        assert held[0].receive().deltas == [TokenDelta(request_id, [1], "stop")]
        # One that leaves makes room.
        held.pop().socket.close()
        until(lambda: sum(connection.alive for connection in server._connections.values()) == 2)
        held.append(Peer(address))
        assert held[-1].receive().info is not None
        for peer in held:
            peer.socket.close()


def test_pings_that_nobody_reads_the_answers_of_cost_nothing() -> None:
    with served() as (_, server, address):
        peer = Peer(address)
        assert peer.receive().info is not None
        (connection,) = server._connections.values()
        # As many at a time as the socket takes, and more answers than it takes.
        for _ in range(40):
            peer.socket.sendall(pack(PING) * 10_000)
        peer.send(ClientFrame(stats_queries=[5]))
        until(lambda: connection._queued)
        assert len(connection._queued) < 1000
        answers = 0
        while (frame := peer.message()) == PING:
            answers += 1
        assert msgspec.msgpack.decode(frame, type=ServerFrame).update is not None
        assert answers <= 400_000
        peer.socket.close()


def test_answers_that_nobody_reads_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "_MOST_QUEUED_BYTES", 10_000)
    with served() as (engine, _, address):
        peer = Peer(address)
        request_id = peer.ask()
        engine.wait_for(lambda: engine.live)
        try:
            while True:
                peer.send(ClientFrame(stats_queries=list(range(100))))
        except OSError:
            pass
        engine.wait_for(lambda: engine.cancelled == [request_id])
        peer.socket.close()


@pytest.mark.parametrize("field", ["stats_queries", "prefix_resets", "loras"])
def test_updates_in_a_frame_have_a_bound(field: str) -> None:
    numbers = list(range(connection_module._MOST_UPDATES + 1))
    many: Any = [LoraUpdate(number, "a", "") for number in numbers] if field == "loras" else numbers
    with served() as (engine, _, address):
        peer = Peer(address)
        request_id = peer.ask()
        engine.wait_for(lambda: engine.live)
        peer.send(ClientFrame(**{field: many}))
        engine.wait_for(lambda: engine.cancelled == [request_id])
        assert peer.hung_up()
        peer.socket.close()


def test_updates_under_way_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "_MOST_UPDATES", 3)
    may_go = threading.Event()
    with served() as (engine, _, address):

        def reset() -> None:
            assert may_go.wait(WAIT_S)

        engine.reset_prefix_cache = reset  # type: ignore[method-assign]
        peer = Peer(address)
        assert peer.receive().info is not None
        for number in range(1, 6):
            peer.send(ClientFrame(prefix_resets=[number]))
        refused = [peer.update() for _ in range(2)]
        assert [(result.update_id, result.busy) for result in refused] == [(4, True), (5, True)]
        may_go.set()
        assert [peer.update() for _ in range(3)] == [UpdateResult(number, None) for number in (1, 2, 3)]
        peer.socket.close()


def test_what_is_too_large_for_a_frame_is_sent_in_several_or_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as (engine, _, address):
        peer = Peer(address)
        base = peer.receive().id_base
        peer.send(ClientFrame([GenerationRequest(base + number, [1], 5) for number in range(1, 5)]))
        engine.wait_for(lambda: len(engine.live) == 4)
        monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 200)
        sizes = (30, 60, 500, 30)
        engine.step(*(TokenDelta(base + number, [1] * size) for number, size in enumerate(sizes, 1)))
        deltas: list[TokenDelta] = []
        while len(deltas) < 4:
            deltas += peer.receive().deltas
        assert [len(delta.token_ids) for delta in deltas] == [30, 60, 0, 30]
        assert [delta.finish_reason for delta in deltas] == [None, None, "error", None]
        engine.wait_for(lambda: engine.cancelled == [base + 3])
        monkeypatch.undo()
        peer.socket.close()
