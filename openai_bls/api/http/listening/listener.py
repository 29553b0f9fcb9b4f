"""Listening socket of /v1, shared only by the instances of one server."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

from openai_bls.core.processes.identity import process_identity
from openai_bls.transport.ipc.sockets import new_socket


class PortInUseError(Exception):
    """The port belongs to another program; the message is one line with advice."""


class SharedListener:
    """A socket bound with SO_REUSEPORT, so that every `openai_bls` instance of one tritonserver listens on one port.

    SO_REUSEPORT alone would let two servers of one user share a port and mix their requests up; a second socket, whose
    address names the owning server, keeps another one off.

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
    """A socket whose abstract address says that the tritonserver `owner` has `port`.

    The kernel keeps such addresses apart by network namespace, as it does ports, and forgets them with the process.
    """
    prefix = f"openai_bls/v1/{os.getuid()}/{port}/"
    holder = "/".join(map(str, process_identity(owner)))
    claim = new_socket()
    claim.bind(f"\0{prefix}{holder}/{secrets.token_hex(8)}")
    # Of two that come at the same moment each sees the other.
    for line in Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines():
        _, _, claimed = line.partition(f" @{prefix}")
        if claimed and not claimed.startswith(f"{holder}/"):
            claim.close()
            raise PortInUseError(
                f"/v1 port {port} belongs to another tritonserver (process {claimed.split('/')[1]}); "
                "choose another with OPENAI_BLS_HTTP_PORT, or 0 for none"
            )
    return claim
