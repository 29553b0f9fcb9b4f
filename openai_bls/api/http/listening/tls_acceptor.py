"""Acceptor of TLS connections: a handshake that is bounded in time and number, before uvicorn sees the connection."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from openai_bls.api.http.connection.refusals import last_response
from openai_bls.api.http.disconnect import resolve
from openai_bls.api.http.listening.acceptor import Acceptor
from openai_bls.api.http.listening.tls_files import TlsFiles
from openai_bls.core.errors import InvalidRequestError

logger = logging.getLogger(__name__)

# First byte of every TLS connection: a record with a handshake in it.
_HANDSHAKE_RECORD = b"\x16"
# Seconds that a client which goes away gets to say so.
_CLOSE_S = 5.0


class TlsAcceptor(Acceptor):
    """Connections of a listening socket, handed on once their TLS stands.

    uvicorn's own way has no bound for handshakes: neither their number nor, short of a minute, their time.

    Args:
        listener: the socket; stays the caller's.
        make_protocol: makes the protocol of a connection, in clear text.
        has_room: whether, with so many handshakes under way, one more connection may come.
        files: files of the certificate.
        handshake_timeout_s: most seconds from the connection to the end of the handshake.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        has_room: Callable[[int], bool],
        files: TlsFiles,
        handshake_timeout_s: float,
    ) -> None:
        super().__init__(listener, make_protocol, has_room)
        self._files = files
        self._timeout_s = handshake_timeout_s

    async def connect(self, connection: socket.socket) -> None:
        """Shake hands, and hand the connection on to its protocol."""
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
