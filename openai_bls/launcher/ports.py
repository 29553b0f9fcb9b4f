"""TCP ports of a server: probes and leases of free ones."""

from __future__ import annotations

import contextlib
import random
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from openai_bls.launcher.errors import LaunchError

if TYPE_CHECKING:
    from types import TracebackType

# Free ports are picked below Linux's range for outgoing connections (32768 and up): a port in that
# range may be taken by any client between the choice and the server's bind.
_FIRST_PORT, _LAST_PORT = 20_000, 32_000
_ATTEMPTS = 2_000


@dataclass(frozen=True)
class Ports:
    """The ports one server listens on; 0 for `openai` turns /v1 off."""

    http: int = 8000
    grpc: int = 8001
    metrics: int = 8002
    openai: int = 9000


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """True if a server could listen on `port` now.

    SO_REUSEPORT stays off on purpose: with it, a second server would bind the first one's port and
    the two would silently share the connections.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def local_host(host: str) -> str:
    """The address at which this machine reaches a server bound to `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)


@dataclass
class PortLease:
    """Four free ports, kept from other leases until closed.

    A port is reserved by an abstract Unix socket named after it: such names live in the network
    namespace, as ports do, and vanish with the process, so two test runs that start servers at once
    never pick the same port and nothing is ever left to clean up.
    """

    ports: Ports = field(init=False)
    _locks: list[socket.socket] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        self.ports = Ports(*(self._take() for _ in range(4)))

    def _take(self) -> int:
        for _ in range(_ATTEMPTS):
            port = random.randint(_FIRST_PORT, _LAST_PORT)
            lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                lock.bind(f"\0openai_bls-port-{port}")
            except OSError:
                lock.close()
                continue
            if is_free(port):
                self._locks.append(lock)
                return port
            lock.close()
        raise LaunchError(f"no free TCP port between {_FIRST_PORT} and {_LAST_PORT} was found")

    def close(self) -> None:
        """Let other leases take these ports again."""
        while self._locks:
            with contextlib.suppress(OSError):
                self._locks.pop().close()

    def __enter__(self) -> PortLease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
