"""Status of an engine's process, for health checks: asked over its own socket, by `openai-bls engine --status`."""

from __future__ import annotations

import contextlib

from openai_bls.transport.engine_process import handshake
from openai_bls.transport.engine_process.address import EngineAddress
from openai_bls.transport.engine_process.handshake import HandshakeError, Status
from openai_bls.transport.engine_process.source import connect_unix

TIMEOUT_S = 5.0


def ask(address: EngineAddress, timeout_s: float = TIMEOUT_S) -> Status:
    """How the engine is.

    Args:
        address: address of the engine's process.
        timeout_s: seconds for each step.

    Raises:
        HandshakeError: it is of another release, or hangs up, or no process listens there in time; one sentence.
    """
    try:
        with contextlib.closing(connect_unix(address)) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(handshake.preface("status"))
            return handshake.read_status(connection, timeout_s)
    except OSError as error:
        raise HandshakeError(f"no engine's process answers at {address}: {error.strerror or error}") from None
