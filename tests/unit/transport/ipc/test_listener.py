from __future__ import annotations

import os
import socket
import struct
from types import SimpleNamespace
from typing import Any

import pytest

from openai_bls.transport.ipc import frames, listener
from tests.unit.core_support import WAIT_S, exchange_address


@pytest.mark.parametrize("uid", [0, os.getuid(), os.getuid() + 1])
def test_whose_process_is_at_the_other_end(uid: int) -> None:
    asked: list[tuple[int, int]] = []

    def getsockopt(level: int, option: int, size: int) -> bytes:
        asked.append((level, option))
        return struct.pack("3i", 123, uid, 456)

    connection: Any = SimpleNamespace(getsockopt=getsockopt)
    assert listener.is_ours(connection) == (uid in (0, os.getuid()))
    assert asked == [(socket.SOL_SOCKET, socket.SO_PEERCRED)]


def test_a_process_of_another_user_is_turned_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "is_ours", lambda connection: False)
    address = exchange_address()
    taken: list[socket.socket] = []
    end = listener.Listener("engine", address, taken.append)
    end.start()
    with frames.new_socket() as caller:
        caller.settimeout(WAIT_S)
        while True:
            try:
                caller.connect(address)
                break
            except ConnectionRefusedError:
                continue
        assert caller.recv(1) == b""
    end.close()
    assert not taken
    assert "another user was turned away from the engine" in caplog.text
