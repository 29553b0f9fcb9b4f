"""Listening socket of /v1, shared only by the instances of one server."""

from __future__ import annotations

import socket

from openai_bls.core.processes.identity import process_identity
from openai_bls.transport.ipc.claims import ClaimedError, claim


class PortInUseError(Exception):
    """The port belongs to another program; the message is one line with advice."""


class SharedListener:
    """A socket bound with SO_REUSEPORT, so that every `openai_bls` instance of one tritonserver listens on one port.

    SO_REUSEPORT alone would let two servers of one user share a port and mix their requests up; a claim of the owning
    server keeps another one off.

    Args:
        owner: the process id of the tritonserver.

    Raises:
        PortInUseError: another program, or another tritonserver, has the port.
    """

    def __init__(self, host: str, port: int, owner: int) -> None:
        self._claim = _claim(port, owner)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self.socket.bind((host, port))
            self.socket.listen(2048)
        except OSError as error:
            self.close()
            raise PortInUseError(
                f"/v1 cannot listen on {host}:{port} ({error.strerror}); "
                "choose another with OPENAI_BLS_HTTP_PORT, or 0 for none"
            ) from None

    def close(self) -> None:
        """Stop listening and give the port up."""
        self.socket.close()
        self._claim.close()


def _claim(port: int, owner: int) -> socket.socket:
    """A claim of the tritonserver `owner` on `port`."""
    try:
        return claim(f"openai_bls/v1/{port}", "/".join(map(str, process_identity(owner))))
    except ClaimedError as error:
        raise PortInUseError(
            f"/v1 port {port} belongs to another tritonserver (process {error.owner.split('/')[1]}); "
            "choose another with OPENAI_BLS_HTTP_PORT, or 0 for none"
        ) from None
