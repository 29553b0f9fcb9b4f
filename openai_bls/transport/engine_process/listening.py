"""Listening socket of an engine's process: who connects is checked, told how the engine is, and served once it is."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path

from openai_bls.core.log_limit import LimitedWarnings
from openai_bls.core.manifest import EngineLoadError
from openai_bls.transport.engine_process import handshake
from openai_bls.transport.engine_process.address import EngineAddress
from openai_bls.transport.engine_process.handshake import HandshakeError, Role, Status
from openai_bls.transport.ipc import peers
from openai_bls.transport.ipc.listener import MOST_CONNECTIONS, Acceptor
from openai_bls.transport.ipc.peers import ForeignPeerError

logger = logging.getLogger(__name__)

_GREETING_S = 10.0
"""Seconds that a peer has for its preface."""
_MOST_GREETINGS = 64
"""Connections that have not sent their preface; with one more the oldest is closed: a peer sends its own at once."""

_OWN_USER_MODE = 0o600

Serve = Callable[[Role, socket.socket], None]


class EngineState:
    """State of the engine, for those who wait for it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._status = Status("loading")

    def set(self, status: Status) -> None:
        """Tell all who wait."""
        with self._changed:
            self._status = status
            self._changed.notify_all()

    @property
    def now(self) -> Status:
        """The status."""
        return self._status

    def next(self, last: Status | None) -> Status:
        """The status as soon as it is another than `last`, or after `STATUS_INTERVAL_S`."""
        with self._changed:
            self._changed.wait_for(lambda: self._status is not last, timeout=handshake.STATUS_INTERVAL_S)
            return self._status


class EngineListener(Acceptor):
    """Accepts connections to an engine's process, each on a separate thread.

    Args:
        address: address of the listening socket.
        state: state of the engine.
        serve: takes a connection of a peer that was let in, once the engine is ready; runs on the connection's thread.
        mode: permissions of the socket's file.

    Raises:
        EngineLoadError: it cannot listen there.
    """

    def __init__(
        self,
        address: EngineAddress,
        state: EngineState,
        serve: Serve,
        *,
        mode: int = 0o600,
    ) -> None:
        self._address = address
        self._state = state
        self._serve = serve
        super().__init__("engine", unix_socket(address, mode), self._accepted)
        self._file = _identity(address)
        # A file for more users than one has permissions that say whom.
        self._own_user_only = address.path.startswith("@") or mode == _OWN_USER_MODE
        self._lock = threading.Lock()
        self._greetings: dict[int, socket.socket] = {}
        """Connections without a preface, the oldest first, by number; a second descriptor of each, to break it off."""
        self._numbers = itertools.count()
        self._waiting = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._crowded, self._turned_away = LimitedWarnings(logger), LimitedWarnings(logger)

    def close(self) -> None:
        """Accept no more, and remove the socket's file."""
        super().close()
        if self._file is not None and _identity(self._address) == self._file:
            Path(self._address.path).unlink(missing_ok=True)

    def _accepted(self, accepted: socket.socket) -> None:
        number, handle = next(self._numbers), accepted.dup()
        with self._lock:
            self._greetings[number] = handle
            oldest = (
                self._greetings.pop(next(iter(self._greetings))) if len(self._greetings) > _MOST_GREETINGS else None
            )
        if oldest is not None:
            self._crowded.write("more than %d peers say nothing; the oldest is turned away", _MOST_GREETINGS)
            _break_off(oldest)
        threading.Thread(target=self._greet, args=(number, accepted), name="engine-peer", daemon=True).start()

    def _greet(self, number: int, accepted: socket.socket) -> None:
        role: Role | None = None
        try:
            role = self._let_in(number, accepted)
        except (HandshakeError, ForeignPeerError, OSError) as error:
            self._turned_away.write("a peer was turned away: %s", error)
        finally:
            self._has_greeted(number)
        if role is None or role == "status":
            accepted.close()
        else:
            self._serve(role, accepted)

    def _has_greeted(self, number: int) -> None:
        with self._lock:
            handle = self._greetings.pop(number, None)
        if handle is not None:
            handle.close()

    def _let_in(self, number: int, accepted: socket.socket) -> Role:
        """Check a peer, and wait with it for the engine."""
        if self._own_user_only:
            peers.check(accepted, root=True)
        peer = handshake.read_preface(accepted, _GREETING_S)
        self._has_greeted(number)
        refusal = handshake.refusal(peer)
        if refusal is not None:
            handshake.send_status(accepted, Status("refused", error=refusal))
            raise HandshakeError(refusal)
        if peer.role == "status":
            handshake.send_status(accepted, self._state.now)
        else:
            self._wait_with(accepted)
        return peer.role

    def _wait_with(self, connection: socket.socket) -> None:
        if not self._waiting.acquire(blocking=False):
            problem = f"more than {MOST_CONNECTIONS} peers wait for the engine"
            handshake.send_status(connection, Status("refused", error=problem))
            raise HandshakeError(problem)
        try:
            self._tell(connection)
        finally:
            self._waiting.release()

    def _tell(self, connection: socket.socket) -> None:
        """Tell how the engine is until it is ready."""
        status: Status | None = None
        while status is None or status.state != "ready":
            status = self._state.next(status)
            handshake.send_status(connection, status)
            if status.error:
                raise HandshakeError("its engine has failed")


def _break_off(handle: socket.socket) -> None:
    with contextlib.suppress(OSError):
        handle.shutdown(socket.SHUT_RDWR)
    handle.close()


def unix_socket(address: EngineAddress, mode: int) -> socket.socket:
    """A listening Unix socket. A file that nobody listens to is replaced.

    Raises:
        EngineLoadError: somebody listens there, or the folder is not fit for it.
    """
    path = Path(address.path)
    if not address.path.startswith("@"):
        _check_folder(path.parent)
        _remove_stale(path)
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o777 & ~mode)
    try:
        found.bind(address.socket_name)
        found.listen()
    except OSError as error:
        found.close()
        raise EngineLoadError(f"cannot listen on {address}: {error.strerror}") from None
    finally:
        os.umask(before)
    return found


def _check_folder(folder: Path) -> None:
    try:
        # In a volume to which every user may write, such as a new one of Kubernetes.
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        mode = folder.stat().st_mode
    except OSError as error:
        raise EngineLoadError(
            f"{folder}, the folder of the engine's socket, cannot be used: {error.strerror}"
        ) from None
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise EngineLoadError(
            f"every user may replace the files in {folder}, the folder of the engine's socket: run `chmod o-w {folder}`"
        )


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise EngineLoadError(f"{path} is there already, and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError as error:
            if error.errno != errno.ECONNREFUSED:
                raise EngineLoadError(f"{path} is another user's socket ({error.strerror})") from None
        else:
            raise EngineLoadError(f"another process serves an engine on {path}")
    path.unlink(missing_ok=True)


def _identity(address: EngineAddress) -> tuple[int, int] | None:
    """Device and inode of the socket's file; None if there is none."""
    if address.path.startswith("@"):
        return None
    try:
        found = Path(address.path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
