"""Source of an engine's process: started here, or somebody else's; both open a connection to one that is ready."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from openai_bls.core.manifest import EngineLoadError
from openai_bls.transport.engine_process import handover, handshake
from openai_bls.transport.engine_process.address import EngineAddress
from openai_bls.transport.engine_process.handshake import HandshakeError, HungUpError, Role
from openai_bls.transport.engine_process.process import EngineProcess
from openai_bls.transport.ipc import peers
from openai_bls.transport.ipc.peers import ForeignPeerError

HELLO_S = 120.0
"""Seconds until an engine's process that is there must have answered for the first time; loading comes after."""
_RETRY_S = 0.05  # between two attempts to connect to a process that is starting
_STOPPED_S = 10.0
"""Seconds after which an engine counts as lost, one of whose processes is stopped by a signal while it loads."""


class ClosedError(Exception):
    """The engine is being closed."""


class Channel(Protocol):
    """Way of accepted connections to the engine's process."""

    def give(self, connection: socket.socket) -> None:
        """Have the engine's process serve a connection, which is closed here.

        Raises:
            OSError: the process has gone; the connection is as it was.
        """

    def close(self, *, orderly: bool) -> None:
        """End all connections that were given, with a goodbye if `orderly`."""


class Opened(NamedTuple):
    """Connections to an engine's process that is ready."""

    exchange: socket.socket
    channel: Channel


class EngineSource(Protocol):
    """Source of an engine's process."""

    limit: int | None
    """Starts in a row that may fail; None is no limit."""

    def open(self, closing: threading.Event, restarts: int) -> Opened:
        """Connections to a process that is ready; waits while the engine loads.

        Args:
            closing: event that is set if the engine is not wanted any more.
            restarts: number of restarts so far; 0 is the first start.

        Raises:
            EngineLoadError: there is none; one sentence.
            ClosedError: `closing` was set.
        """

    def lost(self) -> str:
        """Reason for the loss of the process, as a sentence; nothing is left of it then."""

    def kill(self) -> None:
        """End a process that hangs, as far as it is ours."""

    def end(self) -> bool:
        """Tell the process to end well; False if it is somebody else's."""

    def close(self) -> None:
        """Free everything, after the process was told to end."""


class StartedProcess:
    """Process that is started here.

    Args:
        python: interpreter of the process.
        arguments: command-line arguments of the process, without its socket.
        limit: number of starts in a row that may fail.
        environ: environment to begin with.
    """

    def __init__(
        self, python: str, arguments: Sequence[str], limit: int, environ: Mapping[str, str] | None = None
    ) -> None:
        self.limit: int | None = limit
        self._python = python
        self._arguments = arguments
        self._environ = os.environ if environ is None else environ
        self._process: EngineProcess | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Process id of the engine's process; None while there is none."""
        return None if self._process is None else self._process.pid

    def open(self, closing: threading.Event, restarts: int) -> Opened:
        """A process that is started now."""
        with self._lock:
            if closing.is_set():
                raise ClosedError
            process = self._process = EngineProcess(
                self._python, [*self._arguments, "--supervised", str(restarts)], self._environ
            )
        place = EngineAddress(process.socket)
        try:
            exchange = self._connect(place, "exchange", _Patience(process, closing))
            channel = self._connect(place, "handover", _Patience(process, closing))
            return Opened(exchange, DescriptorChannel(channel))
        except (HungUpError, OSError):
            raise EngineLoadError(self.lost()) from None
        except HandshakeError as error:
            process.kill()
            process.wait()
            raise EngineLoadError(str(error)) from None
        except BaseException:
            process.kill()
            process.wait()
            raise

    def lost(self) -> str:
        """Reason for the end of the process, as a sentence."""
        assert self._process is not None
        self._process.wait_or_kill()
        return self._process.why_ended()

    def kill(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()

    def end(self) -> bool:
        """Tell the process to end."""
        with self._lock:
            if self._process is not None:
                self._process.end()
        return True

    def close(self) -> None:
        """Wait for the end of the process."""
        if self._process is not None:
            self._process.end()
            self._process.wait()

    def _connect(self, place: EngineAddress, role: Role, idle: _Patience) -> socket.socket:
        while True:
            try:
                connection = connect_unix(place, root=False)
            except OSError:
                idle(False)
                time.sleep(_RETRY_S)
                continue
            return _shaken(connection, role, idle)


class _Patience:
    """Wait for a process that starts: it ends when the process does, or says nothing for too long.

    Args:
        process: process of the engine.
        closing: event that is set if the engine is not wanted any more.
    """

    def __init__(self, process: EngineProcess, closing: threading.Event) -> None:
        self._process = process
        self._closing = closing
        self._deadline = time.monotonic() + HELLO_S
        self._runs_at = time.monotonic()

    def __call__(self, heard: bool) -> None:
        """Look at the process. Args: heard: it has answered."""
        if self._closing.is_set():
            raise ClosedError
        if self._process.poll() is not None:
            raise HungUpError("the engine's process has ended")
        now = time.monotonic()
        if not self._process.stopped():
            self._runs_at = now
        if now > self._runs_at + _STOPPED_S:
            raise HandshakeError("a process of the engine was stopped (SIGSTOP) while it loaded")
        if not heard and now > self._deadline:
            raise HandshakeError(f"the engine's process has not answered within {HELLO_S:g} s of its start")


class RemoteProcess:
    """Process that somebody else has started, at an address.

    Args:
        address: address of the process.
        timeout_s: seconds that the first `open` waits for it to be there.
    """

    limit: int | None = None

    def __init__(self, address: EngineAddress, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s

    def open(self, closing: threading.Event, restarts: int) -> Opened:
        """Connections to the process; the first time it is waited for, later it is there or not."""
        deadline = time.monotonic() + (0 if restarts else self._timeout_s)
        while True:
            try:
                return self._open(closing)
            except (HungUpError, OSError) as error:
                if time.monotonic() >= deadline:
                    reason = getattr(error, "strerror", None) or error
                    raise EngineLoadError(f"no engine's process at {self._address}: {reason}") from None
            except HandshakeError as error:
                raise EngineLoadError(f"the engine's process at {self._address} cannot be used: {error}") from None
            if closing.wait(_RETRY_S * 4):
                raise ClosedError

    def lost(self) -> str:
        """Sentence on the loss of the engine's process."""
        return f"the engine's process at {self._address} has gone"

    def kill(self) -> None:
        """Nothing: it is somebody else's."""

    def end(self) -> bool:
        """Nothing: it is somebody else's."""
        return False

    def close(self) -> None:
        """Free nothing: the process is another's."""

    def _open(self, closing: threading.Event) -> Opened:
        exchange = self._connect("exchange", closing)
        return Opened(exchange, DescriptorChannel(self._connect("handover", closing)))

    def _connect(self, role: Role, closing: threading.Event) -> socket.socket:
        return _shaken(connect_unix(self._address), role, _until(closing))


class DescriptorChannel:
    """Channel over which file descriptors travel.

    Args:
        channel: Unix socket with the role handover.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def give(self, connection: socket.socket) -> None:
        """Give the descriptor away."""
        handover.give(self._channel, connection)

    def close(self, *, orderly: bool) -> None:
        """End the handover."""
        if orderly:
            handover.say_goodbye(self._channel)
        self._channel.close()


def connect_unix(address: EngineAddress, *, root: bool = True) -> socket.socket:
    """A connection to a Unix socket of a process that is believed.

    Args:
        address: address of the process.
        root: believe one of root's, too.

    Raises:
        HandshakeError: a process of another user listens there.
        OSError: nobody listens there.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(address.socket_name)
        _check_peer(connection, root=root)
    except BaseException:
        connection.close()
        raise
    return connection


def _shaken(connection: socket.socket, role: Role, idle: Callable[[bool], None]) -> socket.socket:
    """The connection after its handshake."""
    try:
        connection.sendall(handshake.preface(role))
        handshake.await_ready(connection, idle)
    except BaseException:
        connection.close()
        raise
    return connection


def _until(closing: threading.Event) -> Callable[[bool], None]:
    deadline = time.monotonic() + HELLO_S

    def idle(heard: bool) -> None:
        if closing.is_set():
            raise ClosedError
        if not heard and time.monotonic() > deadline:
            raise HungUpError(f"it has not answered within {HELLO_S:g} s")

    return idle


def _check_peer(connection: socket.socket, *, root: bool) -> None:
    """Refuse a process of another user, who could read every prompt."""
    try:
        peers.check(connection, root=root)
    except ForeignPeerError as error:
        raise HandshakeError(
            f"it runs as user {error.peer.uid} and this server as user {os.geteuid()}: run both as the same user "
            "(in containers by `user:` or runAsUser), or the engine as root"
        ) from None
