"""A stranger's process gets nothing: other users, real ones where the tests may become one, at both ends."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import pytest

from openai_bls.core.processes import private_folder
from openai_bls.core.processes.identity import process_secret
from openai_bls.transport.ipc import link, listener, peers, sockets
from openai_bls.transport.ipc.listener import Listener
from openai_bls.transport.ipc.peers import ForeignPeerError, Peer
from openai_bls.transport.ipc.ping import PingClient, PingServer
from tests.unit.core_support import WAIT_S, exchange_address
from tests.waiting import until

STRANGER = 1234
_SETRESUID = {"x86_64": 117, "aarch64": 147}


def as_stranger(work: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something as another user; without the right to become one, the kernel's word is replaced."""
    number = _SETRESUID.get(os.uname().machine)
    if os.geteuid() != 0 or number is None:
        monkeypatch.setattr(peers, "peer_of", lambda connection: Peer(os.getpid(), STRANGER))
        work()
        return
    failures: list[BaseException] = []

    def run() -> None:
        try:
            # The system call changes this thread alone.
            assert ctypes.CDLL(None).syscall(number, STRANGER, STRANGER, STRANGER) == 0
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not failures, failures


@pytest.fixture
def loose(monkeypatch: pytest.MonkeyPatch) -> str:
    """An address in a folder that everybody may write to, as if the private folder did not keep others out."""
    folder = Path("/tmp") / f"openai_bls-test-{os.getpid()}-{os.urandom(4).hex()}"
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setattr(private_folder, "_is_private", lambda status: True)
    return str(folder / "model")


def test_the_user_is_the_kernels_word() -> None:
    one, two = socket.socketpair()
    with one, two:
        assert peers.peer_of(one) == Peer(os.getpid(), os.geteuid())
        peers.check(one)


@pytest.mark.parametrize("root", [False, True])
@pytest.mark.parametrize("uid", [0, os.geteuid(), STRANGER])
def test_whose_processes_are_believed(monkeypatch: pytest.MonkeyPatch, uid: int, root: bool) -> None:
    monkeypatch.setattr(peers, "peer_of", lambda connection: Peer(1, uid))
    monkeypatch.setattr(os, "geteuid", lambda: 77)
    one, two = socket.socketpair()
    with one, two:
        if uid == 0 and root:
            peers.check(one, root=root)
        else:
            with pytest.raises(ForeignPeerError) as refused:
                peers.check(one, root=root)
            assert refused.value.peer.uid == uid


def test_a_stranger_finds_no_way_to_a_model() -> None:
    """It may not even look into the folder, let alone replace it."""
    address = exchange_address()
    server = PingServer("postprocessing", address, lambda: None)
    server.start()
    until(lambda: sockets.holder(address))
    folder = Path(address).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.parent.stat().st_mode & stat.S_ISVTX
    script = (
        f"import os, socket; os.setresuid({STRANGER}, {STRANGER}, {STRANGER})\n"
        f"for act, place in (('connect', {address!r}), ('bind', {address + '2'!r})):\n"
        "    try: getattr(socket.socket(socket.AF_UNIX), act)(place); print(act)\n"
        "    except PermissionError: pass\n"
        f"try: os.rename({str(folder)!r}, {str(folder) + 'x'!r}); print('renamed')\n"
        "except PermissionError: pass\n"
    )
    # Without root there is no other user to be: the modes above are what keeps one out.
    if os.geteuid() == 0:
        found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert found.stdout == ""
    server.close()


def test_no_name_can_be_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The part that is not in /proc for everybody differs by process, and a stranger cannot read it."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        assert len({process_secret(os.getpid()), process_secret(other.pid), process_secret(2**22 + 1)}) == 3
        mine = process_secret(other.pid)
        theirs: list[str] = []
        if os.geteuid() == 0:
            as_stranger(lambda: theirs.append(process_secret(other.pid)), monkeypatch)
            assert theirs != [mine]
        other.communicate(b"\n")


def test_a_process_of_another_user_is_turned_away_unheard(
    loose: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    taken: SimpleQueue[socket.socket] = SimpleQueue()
    end = Listener("engine", loose, taken.put)
    end.start()
    until(lambda: sockets.holder(loose) is not None)
    taken.get(timeout=WAIT_S).close()
    Path(loose).chmod(0o777)
    heard: list[bytes] = []

    def call() -> None:
        for _ in range(20):
            with sockets.new_socket() as caller:
                caller.settimeout(WAIT_S)
                caller.connect(loose)
                heard.append(caller.recv(1))

    as_stranger(call, monkeypatch)
    end.close()
    assert heard == [b""] * 20
    assert taken.empty()
    # One line for all.
    assert len([record for record in caplog.records if f"user {STRANGER}" in record.getMessage()]) == 1


def test_a_stranger_in_a_models_place_is_told_nothing(loose: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """/health says so, and once the model has its place again it is connected to."""
    heard: list[bytes] = []
    strangers: list[socket.socket] = []

    def listen() -> None:
        strangers.append(sockets.new_socket())
        strangers[0].bind(loose)
        strangers[0].listen()

    as_stranger(listen, monkeypatch)
    Path(loose).chmod(0o777)

    def take() -> None:
        while True:
            try:
                connection, _ = strangers[0].accept()
            except OSError:
                return
            with connection:
                heard.append(connection.recv(1))

    thread = threading.Thread(target=take)
    thread.start()

    async def scenario() -> None:
        client = PingClient("postprocessing", loose)
        while await client.check(WAIT_S) != "foreign":
            await asyncio.sleep(0.005)
        while len(heard) < 3:
            await asyncio.sleep(0.005)
        strangers[0].shutdown(socket.SHUT_RDWR)
        strangers[0].close()
        thread.join()
        monkeypatch.undo()
        monkeypatch.setattr(private_folder, "_is_private", lambda status: True)
        server = PingServer("postprocessing", loose, lambda: None)
        server.start()
        while await client.check(WAIT_S) != "up":
            await asyncio.sleep(0.005)
        await client.close()
        server.close()

    asyncio.run(asyncio.wait_for(scenario(), WAIT_S))
    assert set(heard) == {b""}


def test_a_listener_that_never_says_a_word_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_HELLO_S", 0.0)
    address = exchange_address()

    async def scenario() -> None:
        with sockets.listen(address):
            client = PingClient("postprocessing", address)
            while await client.check(WAIT_S) != "silent":
                await asyncio.sleep(0.005)
            await client.close()
        sockets.unlink(address)

    asyncio.run(asyncio.wait_for(scenario(), WAIT_S))


def test_an_address_that_another_process_has_is_an_error_and_had_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "TAKEN_S", 0.0)
    monkeypatch.setattr(listener, "_SLOW_RETRY_S", 0.005)
    address = exchange_address()
    script = (
        "import sys; from openai_bls.transport.ipc import sockets\n"
        f"s = sockets.listen({address!r}); print('in', flush=True); sys.stdin.read()"
    )
    came = threading.Event()
    told: SimpleQueue[str] = SimpleQueue()

    class Errors(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno == logging.ERROR:
                told.put(record.getMessage())

    monkeypatch.setattr(listener.logger, "handlers", [Errors()])
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"in\n"
        end = Listener("engine", address, lambda accepted: came.set())
        end.start()
        assert f"process {other.pid} of user {os.geteuid()} has its address" in told.get(timeout=WAIT_S)
        other.kill()
    # The file of a process that was killed is replaced.
    until(lambda: sockets.holder(address) == Peer(os.getpid(), os.geteuid()))
    assert came.wait(WAIT_S)
    end.close()
    assert told.empty()
    assert not Path(address).exists()


def test_a_model_that_is_reloaded_takes_over_without_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "TAKEN_S", 0.0)
    monkeypatch.setattr(listener, "_SLOW_RETRY_S", 0.005)
    address = exchange_address()
    came = [threading.Event(), threading.Event()]
    old = Listener("engine", address, lambda accepted: came[0].set())
    old.start()
    until(lambda: sockets.holder(address) and came[0].wait(WAIT_S))
    asked = threading.Event()

    def parent(pid: int) -> int:
        asked.set()
        return os.getppid()

    monkeypatch.setattr(listener, "_parent", parent)
    new = Listener("engine", address, lambda accepted: came[1].set())
    new.start()
    assert asked.wait(WAIT_S)
    old.close()
    until(lambda: sockets.holder(address) and came[1].wait(WAIT_S))
    new.close()
    assert not Path(address).exists()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_probe_hears_whether_a_socket_is_bound_and_is_not_heard() -> None:
    address = exchange_address()
    with sockets.listen(address) as bound, private_folder.locked(Path(address).parent) as folder:
        name = Path(address).name
        assert sockets.is_bound(folder, name)
        bound.setblocking(False)
        with pytest.raises(BlockingIOError):
            bound.accept()
        with pytest.raises(sockets.AddressTakenError):
            sockets.listen(address)
        bound.close()
        assert Path(address).exists()
        assert not sockets.is_bound(folder, name)
        assert not sockets.is_bound(folder, "none")
    sockets.unlink(address)


def test_models_with_any_name_have_an_address_of_their_own() -> None:
    names = ["tensorrt_llm", "other", "a/b", "a" * 500, "a" * 499, ".", "..", "é", ""]
    places = [sockets.address(name, os.getpid()) for name in names]
    assert places == [sockets.address(name, os.getpid()) for name in names]
    assert len({*places, sockets.address("tensorrt_llm", os.getppid())}) == len(names) + 1
    assert {Path(place).parent for place in places} == {Path(places[0]).parent}
    folder = Path(places[0]).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for place in places:
        with sockets.listen(place), sockets.connect(place):
            pass
        sockets.unlink(place)
    private_folder.remove_if_empty(Path(sockets.address("tensorrt_llm", os.getppid())).parent)
