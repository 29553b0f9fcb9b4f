"""Sockets between the processes of one tritonserver: files in its private folder, bound and connected to with checks.

A file, not an abstract name: every process of the network namespace, which containers may share, sees abstract names in
/proc/net/unix and can take one as soon as it is free.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import socket
from pathlib import Path

from openai_bls.core.processes import private_folder
from openai_bls.transport.ipc import peers
from openai_bls.transport.ipc.peers import Peer

_BACKLOG = 128
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]{0,63}")


class AddressTakenError(Exception):
    """Another process listens at the address."""


def address(model: str, server_pid: int) -> str:
    """Address of the model `model` within the tritonserver `server_pid`: a path in the server's private folder, which
    is made.

    Raises:
        PrivateFolderError: there can be no such folder; one sentence for the operator.
    """
    name = model if _PLAIN.fullmatch(model) else hashlib.sha256(model.encode()).hexdigest()[:32]
    return str(private_folder.locate(server_pid) / name)


def new_socket() -> socket.socket:
    """An unconnected socket of the exchange's kind."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


def listen(place: str) -> socket.socket:
    """A socket that listens at `place`; the file of a process that has died is replaced.

    Raises:
        AddressTakenError: another process listens there, or is about to.
        PrivateFolderError: the folder is not this user's alone.
        OSError: it cannot listen.
    """
    path = Path(place)
    try:
        with private_folder.locked(path.parent, wait=False) as folder:
            if is_bound(folder, path.name):
                raise AddressTakenError
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path.name, dir_fd=folder)
            return bind(folder, path.name)
    except BlockingIOError:
        raise AddressTakenError from None


def bind(folder: int, name: str) -> socket.socket:
    """A socket that listens at the new file `name`.

    Args:
        folder: descriptor of its folder.
        name: name of the file.

    Raises:
        OSError: it cannot listen.
    """
    found = new_socket()
    try:
        found.bind(_within(folder, name))
        found.listen(_BACKLOG)
    except BaseException:
        found.close()
        raise
    return found


def unlink(place: str) -> None:
    """Remove the file of a socket that this process has closed, and the folder after the last."""
    path = Path(place)
    with contextlib.suppress(OSError), private_folder.locked(path.parent) as folder:
        if not is_bound(folder, path.name):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path.name, dir_fd=folder)
        private_folder.remove_if_empty(path.parent)


def connect(place: str) -> socket.socket:
    """A connection to the process that listens at `place`, which is of this user; without waiting.

    Raises:
        ForeignPeerError: another user's process listens there.
        PrivateFolderError: the folder is not this user's alone.
        OSError: nobody listens there, or it is busy.
    """
    path = Path(place)
    folder = private_folder.open_checked(path.parent)
    connection = new_socket()
    try:
        connection.setblocking(False)
        connection.connect(_within(folder, path.name))
        peers.check(connection)
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(folder)
    return connection


def holder(place: str) -> Peer | None:
    """The process that listens at `place`; None if nobody does."""
    try:
        with connect(place) as connection:
            return peers.peer_of(connection)
    except peers.ForeignPeerError as error:
        return error.peer
    except OSError:
        return None


def is_bound(folder: int, name: str) -> bool:
    """True if a process has the socket's file `name`, which hears nothing of this.

    Args:
        folder: descriptor of its folder.
        name: name of the file.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_within(folder, name))
        except OSError as error:
            # The kernel compares the kinds of the sockets once it has found one.
            return error.errno == errno.EPROTOTYPE
    return False


def _within(folder: int, name: str) -> str:
    # Whatever becomes of the folder's name meanwhile; a long path does not fit into an address either.
    return f"/proc/self/fd/{folder}/{name}"
