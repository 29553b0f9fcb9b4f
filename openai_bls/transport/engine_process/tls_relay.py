"""TLS to an engine's process: contexts of both ends, and a relay between a TLS connection and a plain socket.

A TLS connection must not be read and written by two threads at once, which the exchange does. So one thread pumps raw
bytes between it and a socket pair, frames undecoded.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from pathlib import Path

from openai_bls.core.manifest import EngineLoadError

_CHUNK_BYTES = 1 << 16
# A side that is not read from stops the other at as much.
_MOST_BYTES = 1 << 20
# A peer that has gone without a word is noticed after some 75 s of silence.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 3))


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS context of an engine's process.

    Raises:
        EngineLoadError: a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise EngineLoadError(f"{certificate} and {key} make no TLS certificate: {reason}") from None
    return context


def client_context(ca_file: str) -> ssl.SSLContext:
    """TLS context of Triton's side, which verifies the certificate and its host name.

    Args:
        ca_file: file with the CAs, PEM; empty takes the system's.

    Raises:
        EngineLoadError: the file cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        reason = getattr(error, "reason", None) or error.strerror or error
        raise EngineLoadError(f"engine_ca_file {ca_file} cannot be used: {reason}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def tune(connection: socket.socket) -> None:
    """Send small frames at once, and notice a peer that has gone without a word."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def plain_end(tls: ssl.SSLSocket) -> socket.socket:
    """A plain socket that reads and writes what the TLS connection carries; closing it closes that."""
    ours, theirs = socket.socketpair()
    threading.Thread(target=relay, args=(tls, ours), name="engine-tls", daemon=True).start()
    return theirs


def relay(tls: ssl.SSLSocket, plain: socket.socket) -> None:
    """Pump bytes both ways until either end closes; what was read before is still delivered. Closes both."""
    with tls, plain:
        tls.setblocking(False)
        plain.setblocking(False)
        with contextlib.suppress(OSError):
            _Relay(tls, plain).run()


class _Relay:
    """State of one relay."""

    def __init__(self, tls: ssl.SSLSocket, plain: socket.socket) -> None:
        self._tls = tls
        self._plain = plain
        self._to_tls = bytearray()
        self._to_plain = bytearray()
        self._tls_ended = self._plain_ended = False
        self._poll = select.poll()

    def run(self) -> None:
        while True:
            moved = True
            while moved:
                moved = self._read_tls() | self._read_plain() | self._write_tls() | self._write_plain()
            if self._tls_ended and not self._to_plain:
                return
            if self._plain_ended and not self._to_tls:
                return
            self._wait()

    def _wait(self) -> None:
        tls = plain = 0
        if not self._tls_ended:
            tls |= select.POLLIN if len(self._to_plain) < _MOST_BYTES else 0
            tls |= select.POLLOUT if self._to_tls else 0
        if not self._plain_ended:
            plain |= select.POLLIN if len(self._to_tls) < _MOST_BYTES else 0
        plain |= select.POLLOUT if self._to_plain else 0
        self._poll.register(self._tls.fileno(), tls)
        self._poll.register(self._plain.fileno(), plain)
        events = dict(self._poll.poll())
        # An end that hung up and is not being read would be reported for ever.
        gone = select.POLLHUP | select.POLLERR
        if events.get(self._tls.fileno(), 0) & gone and not tls & select.POLLIN:
            self._tls_ended = True
        if events.get(self._plain.fileno(), 0) & gone and not plain & select.POLLIN:
            self._plain_ended = True
            self._to_plain.clear()

    def _read_tls(self) -> bool:
        if self._tls_ended or len(self._to_plain) >= _MOST_BYTES:
            return False
        try:
            data = self._tls.recv(_CHUNK_BYTES)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError:
            data = b""
        self._tls_ended = not data
        self._to_plain += data
        return bool(data)

    def _read_plain(self) -> bool:
        if self._plain_ended or len(self._to_tls) >= _MOST_BYTES:
            return False
        try:
            data = self._plain.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self._plain_ended = not data
        self._to_tls += data
        return bool(data)

    def _write_tls(self) -> bool:
        if not self._to_tls:
            return False
        try:
            # The same bytes again until they are taken, as OpenSSL wants it.
            sent = self._tls.send(bytes(self._to_tls[:_CHUNK_BYTES]))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        del self._to_tls[:sent]
        return sent > 0

    def _write_plain(self) -> bool:
        if not self._to_plain:
            return False
        try:
            sent = self._plain.send(self._to_plain[:_CHUNK_BYTES])
        except BlockingIOError:
            return False
        del self._to_plain[:sent]
        return sent > 0
