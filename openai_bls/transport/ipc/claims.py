"""Claims: names that one owner of this user has on the machine, kept by its processes and gone with them.

A claim is an abstract Unix address, of which the kernel keeps apart what belongs to different network namespaces, as it
does ports. Every user can bind any such address. So a claim listens, and counts only if it is this user's.
"""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

from openai_bls.transport.ipc import peers
from openai_bls.transport.ipc.peers import ForeignPeerError
from openai_bls.transport.ipc.sockets import new_socket

_ADDRESSES = Path("/proc/net/unix")


class ClaimedError(Exception):
    """Another owner has the name."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.owner = owner


def claim(name: str, owner: str) -> socket.socket:
    """A claim on `name`, held until the socket is closed; several claims of one owner go together.

    Args:
        name: what is claimed; no other name begins with it and a slash.
        owner: who has it.

    Raises:
        ClaimedError: another owner of this user has it. Of two that come at the same moment one at least is told.
    """
    made = new_socket()
    try:
        made.bind(f"\0{name}/{owner}/{secrets.token_hex(8)}")
        # Nobody accepts: each look of another owner stays in the queue, and a full one could not be looked at.
        made.listen(socket.SOMAXCONN)
        for line in _ADDRESSES.read_text(encoding="utf-8", errors="replace").splitlines():
            _, _, found = line.partition(f" @{name}/")
            other, _, _ = found.rpartition("/")
            if other not in ("", owner) and _is_ours(f"\0{name}/{found}"):
                raise ClaimedError(other)
    except BaseException:
        made.close()
        raise
    return made


def _is_ours(address: str) -> bool:
    """True if a process of this user listens at an address."""
    with new_socket() as probe:
        probe.setblocking(False)
        try:
            probe.connect(address)
            peers.check(probe)
        except (OSError, ForeignPeerError):
            return False
    return True
