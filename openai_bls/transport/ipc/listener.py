"""Server end of connections between models: it binds the address and accepts."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import struct
import threading
from collections.abc import Callable

from openai_bls.transport.ipc.frames import new_socket

logger = logging.getLogger(__name__)

_RETRY_S = 0.1  # between two attempts to listen


class Acceptor:
    """Accepts connections on a thread of its own.

    Args:
        name: name of this end, for messages.
        listening: listening socket, which is closed with the acceptor.
        on_connection: called with each connection, on the thread.
    """

    def __init__(self, name: str, listening: socket.socket, on_connection: Callable[[socket.socket], None]) -> None:
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
        with contextlib.suppress(OSError):
            # Wakes the thread, which close alone does not.
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        if not self._listens():
            return
        while not self._closing.is_set():
            try:
                accepted, _ = self._socket.accept()
            except OSError as error:
                if not self._closing.is_set():
                    # Too many open files, say, which may pass.
                    logger.warning("a connection to the %s could not be accepted: %s", self._name, error)
                    self._closing.wait(_RETRY_S)
                continue
            self._on_connection(accepted)

    def _listens(self) -> bool:
        """True once the socket listens; False if it never will. Called on the thread, first."""
        return True


class Listener(Acceptor):
    """Acceptor for processes of this user, on an abstract address.

    Args:
        name: name of this end, for messages.
        address: address that `frames.address` gives. When a model is reloaded, the old one still has the address while
            the new one starts: the new one takes it over as soon as it is free.
        on_connection: called with each connection, on the thread.
    """

    def __init__(self, name: str, address: str, on_connection: Callable[[socket.socket], None]) -> None:
        def let_in(accepted: socket.socket) -> None:
            if is_ours(accepted):
                on_connection(accepted)
            else:
                logger.warning("a process of another user was turned away from the %s", name)
                accepted.close()

        super().__init__(name, new_socket(), let_in)
        self._address = address

    def _listens(self) -> bool:
        while not self._closing.is_set():
            try:
                self._socket.bind(self._address)
                self._socket.listen()
                return True
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    logger.exception("the %s cannot listen", self._name)
                    return False
                self._closing.wait(_RETRY_S)
        return False


def is_ours(connection: socket.socket) -> bool:
    """True if the process at the other end is this user's or root's: abstract addresses have no file permissions."""
    return user_of(connection) in (os.getuid(), 0)


def user_of(connection: socket.socket) -> int:
    """User id of the process at the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid: int = struct.unpack("3i", credentials)[1]
    return uid
