from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from openai_bls.core.manifest import EngineLoadError
from openai_bls.transport.engine_process import handshake, listening
from openai_bls.transport.engine_process.address import EngineAddress, parse
from openai_bls.transport.engine_process.handshake import HandshakeError, Status
from openai_bls.transport.engine_process.listening import EngineListener, EngineState, unix_socket
from openai_bls.transport.engine_process.source import RemoteProcess
from openai_bls.transport.engine_process.status import ask
from openai_bls.transport.ipc import peers
from tests.unit.core_support import WAIT_S


class World:
    """A listener on a file, and those whom it has let in."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "engine.sock"
        self.state = EngineState()
        self.served: SimpleQueue[tuple[handshake.Role, socket.socket]] = SimpleQueue()
        self.listener = EngineListener(
            parse(f"unix:{self.path}"), self.state, lambda role, connection: self.served.put((role, connection))
        )
        self.listener.start()

    def connect(self, preface: bytes) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(str(self.path))
        # Who is turned away may be so before it has sent anything.
        with contextlib.suppress(BrokenPipeError):
            connection.sendall(preface)
        return connection


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.listener.close()
    assert not made.path.exists()


def wait_ready(connection: socket.socket) -> None:
    handshake.await_ready(connection, lambda heard: None)


@pytest.mark.parametrize("role", ["exchange", "handover"])
def test_a_peer_waits_and_is_served(world: World, role: handshake.Role) -> None:
    with world.connect(handshake.preface(role)) as peer:
        heard: list[bool] = []

        def ready(was_heard: bool) -> None:
            heard.append(was_heard)
            world.state.set(Status("ready"))

        handshake.await_ready(peer, ready)
        assert heard[0]
        found, connection = world.served.get(timeout=WAIT_S)
        assert found == role
        connection.close()
    with world.connect(handshake.preface(role)) as late:
        wait_ready(late)
        world.served.get(timeout=WAIT_S)[1].close()


def test_who_waits_is_told_why_there_is_no_engine(world: World) -> None:
    with world.connect(handshake.preface("exchange")) as peer:
        world.state.set(Status("failed", error="no memory"))
        with pytest.raises(HandshakeError, match=r"^no memory$"):
            wait_ready(peer)


def test_strangers_do_no_harm(world: World) -> None:
    right = handshake.preface("exchange")
    for data in (b"GET / HTTP/1.1\r\n" * 10, b"\0" * len(right), right.replace(b"E", b"X", 1)):
        with world.connect(data) as stranger, contextlib.suppress(ConnectionResetError):
            assert stranger.recv(100) == b""
    world.state.set(Status("ready"))
    with world.connect(handshake.preface("exchange")) as peer:
        wait_ready(peer)


def test_those_who_say_nothing_are_bounded_and_hold_nobody_up(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.state.set(Status("ready"))
    silent = [world.connect(b"") for _ in range(3 * listening._MOST_GREETINGS)]
    # The oldest went, one for each that came.
    for connection in silent[: 2 * listening._MOST_GREETINGS]:
        connection.settimeout(WAIT_S)
        assert connection.recv(1) == b""
    for _ in range(25):
        with world.connect(handshake.preface("exchange")) as peer:
            wait_ready(peer)
            world.served.get(timeout=WAIT_S)[1].close()
    assert len(world.listener._greetings) <= listening._MOST_GREETINGS
    assert len(caplog.records) <= 2
    for connection in silent:
        connection.close()


def test_those_who_wait_for_the_engine_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.listener, "_waiting", threading.BoundedSemaphore(2))
    waiting = [world.connect(handshake.preface("exchange")) for _ in range(2)]
    for peer in waiting:
        assert handshake.read_status(peer, WAIT_S).state == "loading"
    with world.connect(handshake.preface("exchange")) as one_more:
        assert handshake.read_status(one_more, WAIT_S).state == "refused"
    world.state.set(Status("ready"))
    for peer in waiting:
        wait_ready(peer)
        world.served.get(timeout=WAIT_S)[1].close()
        peer.close()


def test_only_its_own_user_is_let_in_where_no_file_says_otherwise(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(peers, "peer_of", lambda connection: peers.Peer(1, os.geteuid() + 1))
    world.state.set(Status("ready"))
    with world.connect(handshake.preface("exchange")) as peer:
        peer.settimeout(WAIT_S)
        with contextlib.suppress(ConnectionResetError):
            assert peer.recv(1) == b""
    (tmp_path / "group").mkdir()
    place = parse(f"unix:{tmp_path / 'group' / 'engine.sock'}")
    shared = EngineListener(place, world.state, lambda role, connection: connection.close(), mode=0o660)
    shared.start()
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(place.path)
        peer.sendall(handshake.preface("exchange"))
        wait_ready(peer)
    shared.close()
    assert world.served.empty()


def test_a_status_is_not_asked_of_a_stranger(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "peer_of", lambda connection: peers.Peer(1, os.geteuid() + 1))
    with pytest.raises(HandshakeError):
        ask(parse(f"unix:{world.path}"))


@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_permissions_of_the_file(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "engine.sock"
    before = os.umask(0o022)
    try:
        with unix_socket(parse(f"unix:{path}"), mode):
            assert stat.S_IMODE(path.stat().st_mode) == mode
    finally:
        os.umask(before)


def test_only_a_file_that_nobody_listens_to_is_replaced(tmp_path: Path) -> None:
    address = parse(f"unix:{tmp_path / 'engine.sock'}")
    with unix_socket(address, 0o600), pytest.raises(EngineLoadError, match=r"process .*/engine\.sock"):
        unix_socket(address, 0o600)
    assert (tmp_path / "engine.sock").exists()
    unix_socket(address, 0o600).close()


def test_a_folder_that_is_missing_is_made_for_its_user_alone(tmp_path: Path) -> None:
    """The volume of two containers is open to every user."""
    tmp_path.chmod(0o777)
    for _ in range(2):
        with unix_socket(parse(f"unix:{tmp_path / 'own' / 'engine.sock'}"), 0o600):
            assert stat.S_IMODE((tmp_path / "own").stat().st_mode) == 0o700


def test_a_status_is_told_at_once_and_serves_nobody(world: World) -> None:
    address = parse(f"unix:{world.path}")
    for status in (Status("loading"), Status("ready"), Status("failed", error="no memory")):
        world.state.set(status)
        assert ask(address) == status
    assert world.served.empty()


def test_a_status_of_nobody(tmp_path: Path) -> None:
    with pytest.raises(HandshakeError, match=os.strerror(errno.ENOENT)):
        ask(parse(f"unix:{tmp_path / 'engine.sock'}"))
    with unix_socket(parse(f"unix:{tmp_path / 'engine.sock'}"), 0o600) as silent:
        with pytest.raises(HandshakeError, match="timed out"):
            ask(parse(f"unix:{tmp_path / 'engine.sock'}"), timeout_s=0.05)
        silent.close()
    with pytest.raises(HandshakeError, match=os.strerror(errno.ECONNREFUSED)):
        ask(parse(f"unix:{tmp_path / 'engine.sock'}"))


def test_places_that_are_not_fit(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineLoadError, match=r"/file .*socket"):
        unix_socket(parse(f"unix:{tmp_path / 'file'}"), 0o600)
    with pytest.raises(EngineLoadError, match=os.strerror(errno.ENOENT)):
        unix_socket(parse(f"unix:{tmp_path / 'no' / 'where' / 'engine.sock'}"), 0o600)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(EngineLoadError, match=r"user .*/open"):
        unix_socket(parse(f"unix:{tmp_path / 'open' / 'engine.sock'}"), 0o600)


@pytest.mark.skipif(os.getuid() != 0 or platform.machine() != "x86_64", reason="only root may become another user")
def test_a_process_of_another_user_is_not_believed() -> None:
    name = f"@openai_bls-test/{os.getpid()}"
    listeners: list[socket.socket] = []

    def listen() -> None:
        # By the system call, which changes this thread alone.
        assert ctypes.CDLL(None).syscall(117, -1, 1234, -1) == 0  # setresuid on x86-64
        listeners.append(unix_socket(EngineAddress(name), 0o600))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    source = RemoteProcess(EngineAddress(name), WAIT_S)
    with listeners[0], pytest.raises(EngineLoadError, match=" user 1234 "):
        source.open(threading.Event(), 0)
