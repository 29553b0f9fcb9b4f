"""An engine's process over TLS: who is let in, and that every byte arrives."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from openai_bls.core.manifest import EngineLoadError
from openai_bls.transport.engine_process import tls_relay
from openai_bls.transport.engine_process.address import EngineAddress
from openai_bls.transport.engine_process.engine import ProcessEngine
from openai_bls.transport.engine_process.handshake import Role, Status
from openai_bls.transport.engine_process.listening import EngineListener, EngineState
from openai_bls.transport.engine_process.source import RemoteProcess
from openai_bls.transport.ipc.frames import LENGTH, ServerFrame
from openai_bls.transport.ipc.server import ExchangeServer
from tests.certificates import Authority
from tests.unit.core_support import WAIT_S, FakeEngine
from tests.unit.transport.engine_process.local_source import Taken, request

KEY = "the key of this engine"


class Process:
    """What an engine's process has, with a fake engine."""

    def __init__(self, authority: Authority) -> None:
        context = tls_relay.server_context(*authority.issue())
        self.state = EngineState()
        self.exchange = ExchangeServer(None)
        self.engine = FakeEngine(self.exchange.on_step)
        anywhere = EngineAddress("tls", host="127.0.0.1", port=0)
        self.listener = EngineListener(anywhere, self.state, self._serve, tls=context, key=KEY)
        assert self.listener._socket is not None
        self.address = anywhere._replace(port=self.listener._socket.getsockname()[1])
        self.exchange.start(self.engine)
        self.state.set(Status("ready"))
        self.listener.start()

    def _serve(self, role: Role, connection: socket.socket) -> None:
        assert role == "exchange"
        self.exchange.connect(connection)

    def close(self) -> None:
        self.listener.close()
        self.engine.close()
        self.exchange.close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def process(authority: Authority) -> Iterator[Process]:
    made = Process(authority)
    yield made
    made.close()


def source(process: Process, ca_file: Path, key: str = KEY) -> RemoteProcess:
    return RemoteProcess(process.address, 0.001, tls_relay.client_context(str(ca_file)), key)


def test_an_engine_over_tls(process: Process, authority: Authority) -> None:
    taken = Taken()
    engine = ProcessEngine(source(process, authority.file), taken, 60)
    engine.submit(request(1))
    process.engine.wait_for(lambda: process.engine.live)
    engine.cancel(1)
    assert taken.wait_end(1).finish_reason == "cancelled"
    # An instance's connection is relayed, frames undecoded.
    ours, theirs = socket.socketpair()
    engine.adopt(theirs)
    ours.settimeout(WAIT_S)
    (length,) = LENGTH.unpack(ours.recv(LENGTH.size, socket.MSG_WAITALL))
    first = msgspec.msgpack.decode(ours.recv(length, socket.MSG_WAITALL), type=ServerFrame)
    assert first.info == process.engine.info
    engine.close()
    while ours.recv(1000):
        pass
    ours.close()


@pytest.mark.parametrize("key", ["another key of 16", ""])
def test_a_wrong_key(process: Process, authority: Authority, key: str) -> None:
    with pytest.raises(EngineLoadError, match="the key is wrong"):
        ProcessEngine(source(process, authority.file, key), Taken(), 60)


def test_a_certificate_of_another_ca(process: Process, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger")
    with pytest.raises(EngineLoadError, match=r"is not trusted: .*; engine_ca_file names its CA"):
        ProcessEngine(source(process, stranger.file), Taken(), 60)


def test_a_certificate_for_another_host(process: Process, authority: Authority) -> None:
    there = RemoteProcess(
        process.address._replace(host="127.0.0.2"), 0.001, tls_relay.client_context(str(authority.file)), KEY
    )
    with socket.create_server(("127.0.0.2", process.address.port)) as impostor:
        context = tls_relay.server_context(*authority.issue("other"))

        def answer() -> None:
            accepted, _ = impostor.accept()
            with accepted, pytest.raises(ssl.SSLError):
                context.wrap_socket(accepted, server_side=True).recv(1)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(EngineLoadError, match="is not trusted"):
            ProcessEngine(there, Taken(), 60)
        thread.join()


def test_clients_without_tls(process: Process, authority: Authority) -> None:
    with socket.create_connection((process.address.host, process.address.port)) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        plain.settimeout(WAIT_S)
        with contextlib.suppress(ConnectionResetError):
            while plain.recv(100):
                pass
    engine = ProcessEngine(source(process, authority.file), Taken(), 60)
    engine.close()


def test_files_that_make_no_tls(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("no certificate")
    with pytest.raises(EngineLoadError, match="make no TLS certificate"):
        tls_relay.server_context(tmp_path / "x", tmp_path / "x")
    for file in (tmp_path / "x", tmp_path / "missing"):
        with pytest.raises(EngineLoadError, match=r"engine_ca_file .* cannot be used"):
            tls_relay.client_context(str(file))


def tls_pair(authority: Authority) -> tuple[ssl.SSLSocket, ssl.SSLSocket]:
    ours, theirs = socket.socketpair()
    server = tls_relay.server_context(*authority.issue())
    found: list[ssl.SSLSocket] = []
    thread = threading.Thread(target=lambda: found.append(server.wrap_socket(theirs, server_side=True)))
    thread.start()
    client = tls_relay.client_context(str(authority.file)).wrap_socket(ours, server_hostname="localhost")
    thread.join()
    return client, found[0]


def test_every_byte_arrives_both_ways_at_once(authority: Authority) -> None:
    first, second = (tls_relay.plain_end(end) for end in tls_pair(authority))
    sent = [random.Random(seed).randbytes(3_000_001) for seed in (1, 2)]
    received = [bytearray(), bytearray()]

    def read(end: socket.socket, into: bytearray) -> None:
        while len(into) < len(sent[0]) and (data := end.recv(1 << 16)):
            into += data

    threads = [
        threading.Thread(target=first.sendall, args=(sent[0],)),
        threading.Thread(target=second.sendall, args=(sent[1],)),
        threading.Thread(target=read, args=(second, received[0])),
        threading.Thread(target=read, args=(first, received[1])),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [bytes(found) for found in received] == sent
    first.close()
    second.close()


def test_what_was_sent_before_the_end_arrives(authority: Authority) -> None:
    first, second = (tls_relay.plain_end(end) for end in tls_pair(authority))
    first.sendall(b"x" * 500_000)
    first.close()
    received = b""
    while data := second.recv(1 << 16):
        received += data
    assert received == b"x" * 500_000
    second.close()


def test_a_reader_that_stops_reading_bounds_the_relay(authority: Authority) -> None:
    first, second = (tls_relay.plain_end(end) for end in tls_pair(authority))
    first.settimeout(1.0)
    block = b"x" * (1 << 26)
    with pytest.raises(TimeoutError):
        first.sendall(block)
    # It goes away without having read.
    second.close()
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        first.sendall(block)
    first.close()
