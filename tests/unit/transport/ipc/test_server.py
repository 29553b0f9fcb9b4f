"""The exchange's server, byte by byte."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from openai_bls.core.engine_types import GenerationRequest, TokenDelta
from openai_bls.transport.ipc import server as server_module
from openai_bls.transport.ipc import sockets
from openai_bls.transport.ipc.frames import LENGTH, ClientFrame, ServerFrame, pack
from openai_bls.transport.ipc.server import ExchangeServer
from tests.unit.core_support import WAIT_S, FakeEngine, exchange_address


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
