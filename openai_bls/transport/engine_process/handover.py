"""Handover of connections to an engine's process: their file descriptors travel over a Unix socket (SCM_RIGHTS).

The process that accepts a connection of an `openai_bls` instance gives it away, so that tokens go from the engine's
process to the instance directly. The handover ends when its socket does: with a goodbye before, the connections that
went through it get one too; without, they break off, as if the accepting process still had them.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable

from openai_bls.transport.ipc.connection import Connection

logger = logging.getLogger(__name__)

_CONNECTION = b"c"
_GOODBYE = b"g"
# One for each tritonserver that has the engine.
_MOST_CHANNELS = 64


def give(channel: socket.socket, connection: socket.socket) -> None:
    """Give `connection` away and close it here.

    Raises:
        OSError: the process at the other end has gone; the connection is as it was.
    """
    socket.send_fds(channel, [_CONNECTION], [connection.fileno()])
    connection.close()


def say_goodbye(channel: socket.socket) -> None:
    """Have all connections that were given away end with a goodbye."""
    with contextlib.suppress(OSError):
        channel.sendall(_GOODBYE)


class Handovers:
    """Handovers to this process.

    Args:
        connect: serves a connection.
    """

    def __init__(self, connect: Callable[[socket.socket], Connection | None]) -> None:
        self._connect = connect
        self._open: dict[socket.socket, threading.Event] = {}
        """Channels, and whether all that came over them has been hung up on."""

    def receive(self, channel: socket.socket) -> None:
        """Take in connections until the channel ends, and then hang up on them.

        Args:
            channel: a Unix socket; closed at the end.
        """
        if len(self._open) >= _MOST_CHANNELS:
            logger.warning("more than %d processes hand connections over: one more is not heard", _MOST_CHANNELS)
            channel.close()
            return
        over = self._open[channel] = threading.Event()
        try:
            self._receive(channel)
        finally:
            del self._open[channel]
            over.set()

    def settle(self) -> None:
        """Wait until those whose other end has gone are over.

        A process that dies takes this one along. Its connections must have broken off by then: a goodbye that this
        process says to all when it ends would tell that nothing has died.
        """
        for channel, over in list(self._open.items()):
            if _has_ended(channel):
                over.wait()

    def _receive(self, channel: socket.socket) -> None:
        taken: list[Connection] = []
        orderly = False
        with channel:
            while True:
                try:
                    # Not inherited by processes that the engine starts: they would keep it open.
                    data, descriptors, _, _ = socket.recv_fds(channel, 1, 1, socket.MSG_CMSG_CLOEXEC)
                except OSError as error:
                    logger.warning("connections are not handed over any more: %s", error)
                    break
                for descriptor in descriptors:
                    taken = [connection for connection in taken if connection.alive]
                    connection = self._connect(socket.socket(fileno=descriptor))
                    if connection is not None:
                        taken.append(connection)
                if not data or data == _GOODBYE:
                    orderly = bool(data)
                    break
        for connection in taken:
            if orderly:
                connection.close()
            else:
                connection.abandon()
        if orderly:
            for connection in taken:
                connection.join()


def _has_ended(channel: socket.socket) -> bool:
    try:
        return channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) in (b"", _GOODBYE)
    except BlockingIOError:
        return False
    except OSError:  # closed here, as it has ended
        return True
