"""Acceptor of TLS connections: a handshake that is bounded in time and number, before uvicorn sees the connection."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

from openai_bls.api.http.bounded_connection import last_response
from openai_bls.api.http.disconnect import resolve
from openai_bls.api.http.tls_files import TlsFiles
from openai_bls.core.errors import InvalidRequestError

logger = logging.getLogger(__name__)

# Connections taken in one turn of the event loop.
_BATCH = 64
PAUSE_S = 1.0
"""Seconds without accepting once no further file can be opened."""
_NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
# First byte of every TLS connection: a record with a handshake in it.
_HANDSHAKE_RECORD = b"\x16"
# Seconds that a client which goes away gets to say so.
_CLOSE_S = 5.0


class TlsAcceptor:
    """Connections of a listening socket, handed on once their TLS stands.

    uvicorn's own way has no bound for handshakes: neither their number nor, short of a minute, their time.

    Args:
        listener: the socket; stays the caller's.
        files: files of the certificate.
        make_protocol: makes the protocol of a connection, in clear text.
        has_room: whether, with so many handshakes under way, one more connection may come.
        handshake_timeout_s: most seconds from the connection to the end of the handshake.
    """

    def __init__(
        self,
        listener: socket.socket,
        files: TlsFiles,
        make_protocol: Callable[[], asyncio.Protocol],
        has_room: Callable[[int], bool],
        handshake_timeout_s: float,
    ) -> None:
        self._listener = listener
        self._files = files
        self._make_protocol = make_protocol
        self._has_room = has_room
        self._timeout_s = handshake_timeout_s
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Accept no more, and cut handshakes off."""
        self._loop.remove_reader(self._listener)
        if self._pause is not None:
            self._pause.cancel()
        for handshake in self._handshakes:
            handshake.cancel()

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
            if not self._has_room(len(self._handshakes)):
                connection.close()
                continue
            connection.setblocking(False)
            handshake = self._loop.create_task(self._shake_hands(connection))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)

    def _resume(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    async def _shake_hands(self, connection: socket.socket) -> None:
        deadline = self._loop.time() + self._timeout_s
        try:
            first = await asyncio.wait_for(self._first_byte(connection), self._timeout_s)
            if first == _HANDSHAKE_RECORD:
                await self._loop.connect_accepted_socket(
                    self._make_protocol,
                    connection,
                    ssl=self._files.context(),
                    # 0 would be refused.
                    ssl_handshake_timeout=max(0.001, deadline - self._loop.time()),
                    ssl_shutdown_timeout=_CLOSE_S,
                )
                return
            if first:
                _refuse_plain(connection)
        except (OSError, asyncio.TimeoutError) as error:
            # A client without TLS 1.2, with a wrong certificate, gone, or too slow.
            logger.debug("no TLS: %s", error)
        except asyncio.CancelledError:
            connection.close()
            raise
        connection.close()

    async def _first_byte(self, connection: socket.socket) -> bytes:
        """The first byte, which stays to be read; empty if the client has gone."""
        readable = self._loop.create_future()
        self._loop.add_reader(connection, resolve, readable)
        try:
            await readable
        finally:
            self._loop.remove_reader(connection)
        return connection.recv(1, socket.MSG_PEEK)


def _refuse_plain(connection: socket.socket) -> None:
    """Tell a client without TLS."""
    # Closing with something unread would reset the answer.
    connection.recv(65536)
    connection.send(last_response(InvalidRequestError("This port speaks HTTPS: begin the URL with https://.")))
    connection.shutdown(socket.SHUT_WR)
