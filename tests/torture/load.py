"""Load: cases, known streams and clients that behave badly, all at the same time."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from unittest import SkipTest

from hypothesis import HealthCheck, Phase, given, seed, settings

from openai_bls.launcher.tritonserver.ports import Ports
from tests.torture import clients
from tests.torture.cases import DOORS, Case
from tests.torture.doors import Doors
from tests.torture.record import Record
from tests.torture.streams import (
    WAYS,
    BrokenOffError,
    GivenUpError,
    KnownStreams,
    LateError,
    SaidError,
    WrongError,
)
from tests.torture.verdicts import fault_of, status_of

_ROUND = 40
"""Cases of one door in a row."""
_RETRY_SECONDS = 0.5
"""Pause of a client that got nothing."""
_GRACE_SECONDS = 3.0
"""Time for what a dead model had to end by itself."""


class Load:
    """Clients of one server, from `start` to `stop`.

    Args:
        ports: of the server.
        record: takes what they see.
        seed: of all that is drawn.
        token_ids: what `KnownStreams` has learned.
    """

    def __init__(
        self, ports: Ports, record: Record, seed: str, token_ids: dict[str, tuple[list[int], list[int]]]
    ) -> None:
        self._ports = ports
        self._record = record
        self._seed = seed
        self._token_ids = token_ids
        self.stopping = threading.Event()
        """Set: nobody asks anything more."""
        self._threads: list[threading.Thread] = []
        self._askers: list[KnownStreams] = []
        self._fuzzers: list[Doors] = []

    def start(self, fuzzers: int, askers: int) -> None:
        """Begin to ask, with so many threads of cases and of known streams."""
        thread = self._record.thread
        self._threads = [
            *(thread(f"fuzzer-{at}", partial(self._fuzz, at)) for at in range(fuzzers)),
            *(thread(f"asker-{at}", partial(self._ask, at)) for at in range(askers)),
            thread("clients", self._antics),
        ]

    def stop(self) -> None:
        """Ask nothing more, and wait until all clients have closed what they had."""
        self.stopping.set()
        for thread in self._threads:
            thread.join()

    def give_up_lost(self, before: float) -> None:
        """End requests on Triton's ports that began before the recovery and do not end by themselves."""
        self.stopping.wait(_GRACE_SECONDS)
        for pending in [client.pending for client in self._askers] + [client.pending for client in self._fuzzers]:
            if pending is not None and pending.port != "openai" and pending.begun < before:
                pending.given_up = True
                pending.give_up()

    def _fuzz(self, number: int) -> None:
        doors = Doors(self._ports)
        self._fuzzers.append(doors)
        rng = random.Random(f"{self._seed}/fuzzer/{number}")
        names = sorted(DOORS)

        def ask(case: Case) -> None:
            self._judge(doors, case)
            if self.stopping.is_set():
                # Hypothesis ends at once. To draw what nobody asks any more would take minutes.
                raise SkipTest("stopped")

        with contextlib.suppress(SkipTest):
            while True:
                rng.shuffle(names)
                for name in names:
                    tested = given(DOORS[name])(ask)
                    tested = seed(rng.getrandbits(64))(tested)
                    settings(
                        max_examples=_ROUND,
                        database=None,
                        deadline=None,
                        phases=[Phase.generate],
                        suppress_health_check=list(HealthCheck),
                    )(tested)()
        doors.close()

    def _judge(self, doors: Doors, case: Case) -> None:
        while True:
            answer = doors.ask(case)
            disturbed = bool(self._record.met(answer.begun, answer.ended))
            if (
                answer.status not in ("no connection", "UNAVAILABLE")
                or not disturbed
                or self.stopping.wait(_RETRY_SECONDS)
            ):
                break
        wrong = fault_of(case, answer, disturbed=disturbed)
        with self._record.lock:
            self._record.statuses[case.door][status_of(case, answer)] += 1
            if not disturbed:
                slowest = self._record.slowest.get(case.door, 0.0)
                self._record.slowest[case.door] = max(slowest, answer.ended - answer.begun)
        if wrong is not None:
            self._record.found(f"{case.door}: {wrong}", status=answer.status, text=answer.text, case=case.saved())

    def _ask(self, number: int) -> None:
        streams = KnownStreams(self._ports, self._token_ids)
        self._askers.append(streams)
        rng = random.Random(f"{self._seed}/asker/{number}")
        while not self.stopping.is_set():
            door = rng.choice(sorted(WAYS))
            golden = rng.choice(WAYS[door][1])
            begun = time.monotonic()
            end, detail = end_of(partial(streams.check, door, golden))
            self._note(self._record.streams[door].update, door, end, detail, begun)
            if end != "exact":
                self.stopping.wait(_RETRY_SECONDS)
        streams.close()

    def _antics(self) -> None:
        rng = random.Random(f"{self._seed}/clients")
        names = sorted(clients.ANTICS)
        while not self.stopping.is_set():
            # Most take a moment; this one takes all the time that the server gives it.
            name = rng.choice(names if rng.random() < 0.1 else [n for n in names if n != "half-open connections"])
            begun = time.monotonic()
            end, detail = end_of(partial(clients.ANTICS[name], self._ports, rng))
            self._note(self._record.antics[name].update, name, end, detail, begun)
            if end != "exact":
                self.stopping.wait(_RETRY_SECONDS)

    def _note(self, count: Callable[[list[str]], None], name: str, end: str, detail: str, begun: float) -> None:
        met = self._record.met(begun, time.monotonic())
        if end == "late":
            end = "never ended" if met and not name.startswith("/v1") else "wrong"
        with self._record.lock:
            count([end])
            for fault in met:
                fault.streams[end] += 1
        if end == "wrong" or (end != "exact" and not met):
            # What was given up is told of the fault that caused it.
            self._record.found(f"{name}: {end}", detail=detail, during=[fault.name for fault in met])


_ENDS: dict[type[Exception], str] = {
    SaidError: "said error",
    BrokenOffError: "broken off",
    OSError: "broken off",
    GivenUpError: "never ended",
    LateError: "late",
    WrongError: "wrong",
}


def end_of(work: Callable[[], None]) -> tuple[str, str]:
    """How something with a known answer ended, and the sentence about it."""
    try:
        work()
    except tuple(_ENDS) as error:
        return next(end for kind, end in _ENDS.items() if isinstance(error, kind)), str(error) or repr(error)
    return "exact", ""
