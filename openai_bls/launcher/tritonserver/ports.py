"""TCP ports of a server: probes and leases of free ones."""

from __future__ import annotations

import contextlib
import ipaddress
import random
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openai_bls.launcher.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterator

# Free ports are picked below Linux's range for outgoing connections (32768 and up): a port in that
# range may be taken by any client between the choice and the server's bind.
_FIRST_PORT, _LAST_PORT = 20_000, 32_000
_ATTEMPTS = 2_000


LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Ports:
    """The ports one server listens on; 0 for `openai` turns /v1 off."""

    http: int = 8000
    grpc: int = 8001
    metrics: int = 8002
    openai: int = 9000
    tls: bool = False
    """/v1 speaks HTTPS."""
    client_certificates: bool = False
    """/v1 wants a certificate of its clients."""

    def openai_root(self, host: str) -> str:
        """URL, without a path, at which this machine reaches a /v1 that is bound to `host`."""
        address = local_host(host)
        return f"http{'s' if self.tls else ''}://{f'[{address}]' if ':' in address else address}:{self.openai}"


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


def is_loopback(host: str) -> bool:
    """True for an address that this machine alone reaches."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def local_host(host: str) -> str:
    """The address at which this machine reaches a server bound to `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)


@contextlib.contextmanager
def lease_ports() -> Iterator[Ports]:
    """Four free ports, kept from other leases until the block ends.

    A port is reserved by an abstract Unix socket named after it: such names live in the network
    namespace, as ports do, and vanish with the process, so two test runs that start servers at once
    never pick the same port and nothing is ever left to clean up.
    """
    with contextlib.ExitStack() as locks:
        http, grpc, metrics, openai = (_lease(locks) for _ in range(4))
        yield Ports(http, grpc, metrics, openai)


def _lease(locks: contextlib.ExitStack) -> int:
    for _ in range(_ATTEMPTS):
        port = random.randint(_FIRST_PORT, _LAST_PORT)
        with contextlib.ExitStack() as attempt:
            lock = attempt.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            try:
                lock.bind(f"\0openai_bls-port-{port}")
            except OSError:
                continue
            if is_free(port):
                locks.push(attempt.pop_all())
                return port
    raise LaunchError(f"no free TCP port between {_FIRST_PORT} and {_LAST_PORT} was found")
