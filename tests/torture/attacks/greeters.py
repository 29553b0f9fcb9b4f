"""Attacks on the sockets between the server's processes, by clients of its own user that say nothing, or nonsense."""

from __future__ import annotations

import contextlib
import socket
import stat
from pathlib import Path

from tests.torture.attacks.alice import Alice

_MOST = 300
"""Beyond the connections that a model takes."""
_HEADS = (b"", b"", b"\x00", b"\xff" * 8, b"\x00" * 64, b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\xf0" + b"x" * 65536)


def _sockets(folder: Path) -> list[Path]:
    found = []
    for path in folder.rglob("*"):
        # Some are gone meanwhile.
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(path.stat().st_mode):
                found.append(path)
    return sorted(found)


def greeters(alice: Alice) -> None:
    """Many connections to each socket, which stay silent or say what is no greeting."""
    while not alice.over():
        count, head = alice.near(_MOST // 2, _MOST), alice.rng.choice(_HEADS)
        found = _sockets(alice.target.sockets)
        alice.note(f"{count} connections to each of {len(found)} sockets, {head[:20]!r}")
        with contextlib.ExitStack() as stack:
            for path in found:
                for _ in range(count):
                    if alice.over():
                        return
                    connection = stack.enter_context(socket.socket(socket.AF_UNIX))
                    connection.setblocking(False)
                    try:
                        connection.connect(str(path))
                        connection.sendall(head)
                        alice.count("connected")
                    except OSError:
                        alice.count("refused")
