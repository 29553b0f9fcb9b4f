"""Acceptor of connections, as many in one turn of the event loop as wait."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

logger = logging.getLogger(__name__)

# Connections taken in one turn of the event loop.
_BATCH = 64
PAUSE_S = 1.0
"""Seconds without accepting once no further file can be opened."""
_NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Connections of a listening socket.

    uvloop's own servers accept one connection in each turn of the event loop (libuv since 1.45). Turns of a busy loop
    take milliseconds, and whoever comes after a hundred others waits for a hundred of them before it is heard at all.

    Args:
        listener: the socket; stays the caller's.
        make_protocol: makes the protocol of a connection.
        has_room: whether, with so many connections still being prepared, one more may come.
    """

    def __init__(
        self, listener: socket.socket, make_protocol: Callable[[], asyncio.Protocol], has_room: Callable[[int], bool]
    ) -> None:
        self._listener = listener
        self._make_protocol = make_protocol
        self._has_room = has_room
        self._loop = asyncio.get_running_loop()
        self._preparing: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Accept no more, and drop connections that are still being prepared."""
        self._loop.remove_reader(self._listener)
        if self._pause is not None:
            self._pause.cancel()
        for preparing in self._preparing:
            preparing.cancel()

    async def connect(self, connection: socket.socket) -> None:
        """Hand a connection on to its protocol."""
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError as error:
            logger.debug("a client has gone: %s", error)
            connection.close()

    def _accept(self) -> None:
        for _ in range(_BATCH):
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                # All others are of one connection, or say that there is none.
                if error.errno in _NO_FILES:
                    # It would be called again at once, and again.
                    logger.error("/v1 accepts nothing for a while: %s", error.strerror)
                    self._loop.remove_reader(self._listener)
                    self._pause = self._loop.call_later(PAUSE_S, self._resume)
                return
            if not self._has_room(len(self._preparing)):
                connection.close()
                continue
            connection.setblocking(False)
            preparing = self._loop.create_task(self.connect(connection))
            self._preparing.add(preparing)
            preparing.add_done_callback(self._preparing.discard)

    def _resume(self) -> None:
        self._loop.add_reader(self._listener, self._accept)
