"""Users at both ends of a Unix socket: each end looks at the other's before a byte is sent or read."""

from __future__ import annotations

import os
import socket
import struct
from typing import NamedTuple

_CREDENTIALS = struct.Struct("3i")


class Peer(NamedTuple):
    """Process at the other end, as the kernel noted it: of the one that listens at its `listen`, of the one that
    connects at its `connect`."""

    pid: int
    """0 if it is in an id namespace that cannot be seen from here."""
    uid: int
    """Effective user id; 65534 if it has none in this user namespace."""


class ForeignPeerError(Exception):
    """Another user's process at the other end; the message is a part of a sentence for the operator."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(f"process {peer.pid} of user {peer.uid}, not of user {os.geteuid()}")
        self.peer = peer


def peer_of(connection: socket.socket) -> Peer:
    """The process at the other end."""
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return Peer(pid, uid)


def check(connection: socket.socket, *, root: bool = False) -> None:
    """Refuse a process of another user.

    All models of a server are processes that one tritonserver has started, hence of its user, so that root is another
    user to them: in a container beside, which shares the network or a volume, root may be anybody.

    Args:
        connection: connected Unix socket.
        root: take root, too.

    Raises:
        ForeignPeerError: it is another user's.
    """
    peer = peer_of(connection)
    if peer.uid != os.geteuid() and not (root and peer.uid == 0):
        raise ForeignPeerError(peer)
