"""Server end of connections between models: it binds the address and accepts."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from openai_bls.core.log_limit import LimitedWarnings
from openai_bls.transport.ipc import peers, sockets
from openai_bls.transport.ipc.peers import ForeignPeerError
from openai_bls.transport.ipc.sockets import AddressTakenError

logger = logging.getLogger(__name__)

# Between two attempts to listen: while a model that is reloaded gives its place up, and afterwards.
_RETRY_S, _SLOW_RETRY_S = 0.1, 1.0
TAKEN_S = 10.0
"""Seconds after which an address that cannot be had is an error in the log."""
GREETING_S = 10.0
"""Seconds that a client has for its first bytes."""
MOST_CONNECTIONS = 256
"""Connections of one server; one more is closed at once."""


class Acceptor:
    """Accepts connections on a separate thread.

    Args:
        name: name of this end, for messages.
        listening: listening socket, which is closed with the acceptor; None if `_listens` makes it.
        on_connection: called with each connection, on the thread.
    """

    def __init__(
        self, name: str, listening: socket.socket | None, on_connection: Callable[[socket.socket], None]
    ) -> None:
        self._name = name
        self._on_connection = on_connection
        self._socket = listening
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{name}-accept", daemon=True)

    def start(self) -> None:
        """Begin to accept."""
        self._thread.start()

    def close(self) -> None:
        """Accept no more."""
        self._closing.set()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # Wakes the thread, which close alone does not.
                self._socket.shutdown(socket.SHUT_RDWR)
        if self._thread.is_alive():
            self._thread.join()
        if self._socket is not None:
            self._socket.close()

    def _run(self) -> None:
        if not self._listens():
            return
        assert self._socket is not None
        warnings = LimitedWarnings(logger)
        while not self._closing.is_set():
            try:
                accepted, _ = self._socket.accept()
            except OSError as error:
                if not self._closing.is_set():
                    # Too many open files, say, which may pass.
                    warnings.write("a connection to the %s could not be accepted: %s", self._name, error)
                    self._closing.wait(_RETRY_S)
                continue
            self._on_connection(accepted)

    def _listens(self) -> bool:
        """True once the socket listens; False if it never will. Called on the thread, first."""
        return True


class Listener(Acceptor):
    """Acceptor for processes of this user, in the private folder of their tritonserver.

    Args:
        name: name of this end, for messages.
        address: address that `sockets.address` gives. When a model is reloaded, the old one still has the address while
            the new one starts: the new one takes it over as soon as it is free. So do instances of one model.
        on_connection: called with each connection, on the thread.
    """

    def __init__(self, name: str, address: str, on_connection: Callable[[socket.socket], None]) -> None:
        turned_away = LimitedWarnings(logger)

        def let_in(accepted: socket.socket) -> None:
            try:
                peers.check(accepted)
            except ForeignPeerError as error:
                turned_away.write("%s was turned away from the %s", error, name)
                accepted.close()
            else:
                on_connection(accepted)

        super().__init__(name, None, let_in)
        self._address = address

    def close(self) -> None:
        """Accept no more, and remove the socket's file."""
        listened = self._socket is not None
        super().close()
        if listened or self._socket is not None:
            sockets.unlink(self._address)

    def _listens(self) -> bool:
        begun = time.monotonic()
        told = False
        while not self._closing.is_set():
            late = time.monotonic() >= begun + TAKEN_S
            try:
                self._socket = sockets.listen(self._address)
                return True
            except AddressTakenError:
                problem = self._holder() if late and not told else ""
            except OSError as error:
                problem = str(error)
            if late and not told:
                told = True
                if problem:
                    logger.error("the %s cannot listen: %s; it goes on trying", self._name, problem)
            self._closing.wait(_SLOW_RETRY_S if late else _RETRY_S)
        return False

    def _holder(self) -> str:
        """Other holder of the address, unless it is a model of this server that is about to leave it."""
        peer = sockets.holder(self._address)
        if peer is None or _parent(peer.pid) == os.getppid():
            return ""
        return f"process {peer.pid} of user {peer.uid} has its address {self._address}"


def greeted(connection: socket.socket) -> bool:
    """Wait for a client's first bytes; False if none come in time. An end of the connection counts as bytes."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(GREETING_S * 1000))


def has_hung_up(connection: socket.socket) -> bool:
    """True if the other end is closed, though there may be bytes of it that nobody has read."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


def _parent(pid: int) -> int:
    """Parent of a process; 0 if it has gone, or cannot be seen from here."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0
