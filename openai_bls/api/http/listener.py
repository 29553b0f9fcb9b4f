"""Listening socket of /v1, shared by the instances of one server and by nobody else."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from pathlib import Path
from typing import IO


class PortInUseError(Exception):
    """The port belongs to another program; the message is one line with advice."""


class SharedListener:
    """A socket bound with SO_REUSEPORT, so that every `openai_bls` instance of one tritonserver listens on one port.

    SO_REUSEPORT alone would let two servers of one user share a port and mix their requests up; a lock file that
    names the owning server keeps a second one off.

    Args:
        owner: the process id of the tritonserver.

    Raises:
        PortInUseError: another program, or another tritonserver, has the port.
    """

    def __init__(self, host: str, port: int, owner: int) -> None:
        self._lock = _claim(port, owner)
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
        self._lock.close()


def _claim(port: int, owner: int) -> IO[str]:
    path = Path(tempfile.gettempdir()) / f"openai_bls-{os.getuid()}-{port}.lock"
    lock = path.open("a+", encoding="ascii")
    try:
        # Exclusive for the first instance of a server, which writes its name; shared from then on.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.truncate(0)
        lock.write(str(owner))
        lock.flush()
    except BlockingIOError:
        pass
    # A reader may find the first instance between lock and name: this waits for it.
    fcntl.flock(lock, fcntl.LOCK_SH)
    lock.seek(0)
    holder = lock.read().strip()
    if holder != str(owner):
        lock.close()
        raise PortInUseError(
            f"/v1 port {port} belongs to another tritonserver (process {holder}); "
            "choose another with OPENAI_BLS_HTTP_PORT, or 0 for none"
        )
    return lock
