from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest

from openai_bls.transport.engine_process import handshake
from openai_bls.transport.engine_process.handshake import HandshakeError, HungUpError, Status
from openai_bls.transport.ipc.frames import LENGTH, pack
from tests.unit.core_support import WAIT_S


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    first, second = socket.socketpair()
    with first, second:
        yield first, second


Ends = tuple[socket.socket, socket.socket]


def test_frames_of_another_release(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "FRAMES_RELEASE", "0123456789abcdef")
    ends[0].sendall(handshake.preface("exchange"))
    found = handshake.read_preface(ends[1], WAIT_S)
    monkeypatch.undo()
    assert "frames" in (handshake.refusal(found) or "")


def test_a_slow_peer_has_one_deadline_for_all(ends: Ends) -> None:
    """A byte now and then does not prolong it."""
    done = threading.Event()

    def drip() -> None:
        for byte in handshake.preface("exchange")[:-1]:
            if done.wait(0.01):
                return
            ends[0].sendall(bytes([byte]))

    dripping = threading.Thread(target=drip)
    dripping.start()
    with pytest.raises(TimeoutError):
        handshake.read_preface(ends[1], 0.2)
    done.set()
    dripping.join()


def patient(heard: bool) -> None:
    pass


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (pack(msgspec.json.encode(Status("failed", error="no memory"))), "^no memory$"),
        (pack(msgspec.json.encode(Status("refused", error="too many"))), "^too many$"),
        (pack(b'{"state":"loading","frames":"x","version":"9","news":1}'), r"openai_bls 9 \(frames x\)"),
        (pack(b"{}"), "the peer "),
        (pack(b"\xff"), "the peer "),
        (LENGTH.pack(1 << 30), "the peer "),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the peer "),
    ],
)
def test_an_engine_that_cannot_be_used(ends: Ends, sent: bytes, reason: str) -> None:
    ends[0].sendall(sent)
    with pytest.raises(HandshakeError, match=reason):
        handshake.await_ready(ends[1], patient)


def test_an_engine_that_hangs_up(ends: Ends) -> None:
    handshake.send_status(ends[0], Status("loading"))
    ends[0].close()
    with pytest.raises(HungUpError):
        handshake.await_ready(ends[1], patient)


def test_waiting_can_be_given_up(ends: Ends) -> None:
    """Also before the first answer, of which the waiter is told."""
    told: list[bool] = []

    def give_up(heard: bool) -> None:
        told.append(heard)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        handshake.await_ready(ends[1], give_up)
    handshake.send_status(ends[0], Status("loading"))
    with pytest.raises(InterruptedError):
        handshake.await_ready(ends[1], give_up)
    assert told == [False, True]
