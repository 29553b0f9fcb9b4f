"""Connections that are handed over, and how they end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from openai_bls.transport.engine_process import handover

TIMEOUT_S = 60.0


class Held:
    """Handovers whose process is slow to take the only connection in; `events` says what happens to it."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.alive = True
        self._taking, self._take = threading.Event(), threading.Event()
        self.handovers = handover.Handovers(self._connect)  # type: ignore[arg-type]
        self.channel, theirs = socket.socketpair()
        self._given, self._client = socket.socketpair()
        self._receiving = threading.Thread(target=self.handovers.receive, args=[theirs])
        self._receiving.start()
        handover.give(self.channel, self._given)
        assert self._taking.wait(TIMEOUT_S)

    def _connect(self, connection: socket.socket) -> Held:
        connection.close()
        self._taking.set()
        assert self._take.wait(TIMEOUT_S)
        return self

    def settled(self) -> threading.Thread:
        """A thread that settles the handovers and then says goodbye."""

        def settle() -> None:
            self.handovers.settle()
            self.events.append("goodbye")

        thread = threading.Thread(target=settle)
        thread.start()
        return thread

    def take(self) -> None:
        """Take the connection in."""
        self._take.set()

    def end(self) -> None:
        """End the handover, whatever state it is in."""
        self.take()
        self.channel.close()
        self._receiving.join(TIMEOUT_S)
        self._client.close()

    def abandon(self) -> None:
        self.events.append("broken off")

    def close(self) -> None:
        self.events.append("closed")

    def join(self) -> None:
        self.events.append("joined")


@pytest.fixture
def held() -> Iterator[Held]:
    held = Held()
    yield held
    held.end()


def test_what_a_dead_process_gave_breaks_off_before_others_get_a_goodbye(held: Held) -> None:
    held.channel.close()
    settling = held.settled()
    assert held.events == []
    held.take()
    settling.join(TIMEOUT_S)
    assert held.events == ["broken off", "goodbye"]


def test_what_an_orderly_process_gave_is_closed(held: Held) -> None:
    handover.say_goodbye(held.channel)
    settling = held.settled()
    held.take()
    settling.join(TIMEOUT_S)
    assert held.events == ["closed", "joined", "goodbye"]


def test_a_process_that_lives_is_not_waited_for(held: Held) -> None:
    held.settled().join(TIMEOUT_S)
    assert held.events == ["goodbye"]
