"""Status of an engine's process, for health checks: asked over its own socket, by `openai-bls engine --status`."""

from __future__ import annotations

import contextlib
import socket
import ssl

from openai_bls.transport.engine_process import handshake
from openai_bls.transport.engine_process.address import EngineAddress
from openai_bls.transport.engine_process.handshake import HandshakeError, Status
from openai_bls.transport.engine_process.source import connect_unix

TIMEOUT_S = 5.0


def ask(address: EngineAddress, key: str = "", timeout_s: float = TIMEOUT_S) -> Status:
    """How the engine is.

    Args:
        address: address of the engine's process. Over TLS the certificate is not verified: this machine asks itself.
        key: key that peers over TLS must have.
        timeout_s: seconds for each step.

    Raises:
        HandshakeError: it is of another release, or hangs up, or no process listens there in time; one sentence.
    """
    try:
        with contextlib.closing(_connect(address, timeout_s)) as connection:
            connection.sendall(handshake.preface("status", key))
            return handshake.read_status(connection, timeout_s)
    except OSError as error:
        raise HandshakeError(f"no engine's process answers at {address}: {error.strerror or error}") from None


def _connect(address: EngineAddress, timeout_s: float) -> socket.socket:
    if address.kind == "tls":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context.wrap_socket(socket.create_connection((address.host, address.port), timeout_s))
    connection = connect_unix(address)
    connection.settimeout(timeout_s)
    return connection
