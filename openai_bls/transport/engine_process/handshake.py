"""Handshake with an engine's process: a preface of fixed size one way, the state of the engine the other way.

The preface is 35 bytes: a mark, the role of the connection and the release of the frames. The engine's process looks
at no other byte before these are right. It answers with a frame that holds a `Status` as JSON, which any release can
read, and again each few seconds until the engine is ready or has failed. Then frames follow.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec

from openai_bls import __version__
from openai_bls.transport.ipc.frames import FRAMES_RELEASE, LENGTH, pack

_MARK = b"openai_bls engine\n"
_PREFACE = struct.Struct(f"<{len(_MARK)}sc16s")
# A status is a sentence or two.
_MAX_STATUS_BYTES = 1 << 16
_FRAME_TIMEOUT_S = 30.0  # from the first byte of a status to its last
_IDLE_MS = 200
_STRANGER = "the peer is not the process of an engine of openai_bls"

Role = Literal["exchange", "handover", "status"]
_ROLES: dict[Role, bytes] = {"exchange": b"E", "handover": b"H", "status": b"S"}

STATUS_INTERVAL_S = 5.0
"""Seconds between two statuses while the engine loads."""


class HandshakeError(Exception):
    """A peer that cannot be used; the message is one sentence for the operator."""


class HungUpError(HandshakeError):
    """The peer has closed the connection before the engine was ready."""


class Status(msgspec.Struct, frozen=True, omit_defaults=True):
    """State of an engine's process. Fields that a reader does not know are skipped."""

    state: Literal["loading", "ready", "failed", "refused"]
    frames: str = FRAMES_RELEASE
    """Release of its frames."""
    version: str = __version__
    """Version of its openai_bls."""
    error: str = ""
    """Reason for `failed` or `refused`, one sentence."""


# Made here, since two threads that are the first to ask for a struct's types crash the process.
_STATUS = msgspec.json.Decoder(Status)


class Preface(NamedTuple):
    """First message of a connection."""

    role: Role
    frames: str
    """Release of the peer's frames."""


def preface(role: Role) -> bytes:
    """The preface of a connection with the purpose `role`."""
    return _PREFACE.pack(_MARK, _ROLES[role], FRAMES_RELEASE.encode())


def read_preface(connection: socket.socket, timeout_s: float) -> Preface:
    """The preface that a peer sends.

    Args:
        connection: connection to the peer; it has no timeout afterwards.
        timeout_s: seconds until the whole preface must be there.

    Raises:
        HandshakeError: the peer sends something else.
        OSError: the connection broke, or the peer was too slow.
    """
    mark, role, frames = _PREFACE.unpack(_read_exactly(connection, _PREFACE.size, timeout_s))
    connection.settimeout(None)
    roles = {letter: name for name, letter in _ROLES.items()}
    if mark != _MARK or role not in roles:
        raise HandshakeError("the peer is no openai_bls of a release that has engines in processes of their own")
    return Preface(roles[role], frames.decode("ascii", "replace"))


def refusal(peer: Preface) -> str | None:
    """Why an engine's process does not take a peer, as a sentence; None if it does."""
    if peer.frames != FRAMES_RELEASE:
        return (
            f"the engine's process is of openai_bls {__version__} (frames {FRAMES_RELEASE}) and Triton's side of a "
            f"release with other frames ({peer.frames}): install the same release on both sides"
        )
    return None


def send_status(connection: socket.socket, status: Status) -> None:
    """Send a status.

    Raises:
        OSError: the connection broke.
    """
    connection.sendall(pack(msgspec.json.encode(status)))


def await_ready(connection: socket.socket, idle: Callable[[bool], None]) -> None:
    """Wait until the engine at the other end is ready.

    Args:
        connection: the engine's process; it has no timeout afterwards.
        idle: called a few times a second while nothing comes, with whether the process has answered at all; may raise.

    Raises:
        HandshakeError: the engine has failed, or the peer refuses this end, or is of another release.
        HungUpError: the peer has hung up.
        OSError: the connection broke.
    """
    heard = False
    while True:
        if not _readable(connection):
            idle(heard)
            continue
        status = read_status(connection)
        heard = True
        if status.error:
            raise HandshakeError(status.error)
        if status.frames != FRAMES_RELEASE:
            raise HandshakeError(
                f"the engine's process is of openai_bls {status.version} (frames {status.frames}) and this server of "
                f"{__version__} (frames {FRAMES_RELEASE}): install the same release on both sides"
            )
        if status.state == "ready":
            connection.settimeout(None)
            return


def read_status(connection: socket.socket, timeout_s: float = _FRAME_TIMEOUT_S) -> Status:
    """The next status, of any release.

    Args:
        connection: the engine's process.
        timeout_s: seconds for each of the two parts of the status: its length and its text.

    Raises:
        HandshakeError: the peer is no engine's process.
        HungUpError: the peer has hung up.
        OSError: the connection broke, or the peer was too slow.
    """
    (length,) = LENGTH.unpack(_read_exactly(connection, LENGTH.size, timeout_s))
    if length > _MAX_STATUS_BYTES:
        raise HandshakeError(_STRANGER)
    try:
        return _STATUS.decode(_read_exactly(connection, length, timeout_s))
    except msgspec.DecodeError:
        raise HandshakeError(_STRANGER) from None


def _readable(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(_IDLE_MS))


def _read_exactly(connection: socket.socket, size: int, timeout_s: float) -> bytes:
    deadline = time.monotonic() + timeout_s
    data = bytearray()
    while len(data) < size:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(size - len(data))
        if not part:
            raise HungUpError("the engine's process has hung up before its engine was ready")
        data += part
    return bytes(data)
