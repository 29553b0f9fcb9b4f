"""Siege: one attack after another on a server that nobody else asks, while the quiet key is looked at."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor

import httpx

from tests.torture.attacks.alice import Outcome, Target
from tests.torture.attacks.bob import Bob
from tests.torture.attacks.catalog import attack, clean_up, wanted
from tests.torture.attacks.judgement import Fought, quiet_costs, wrongs
from tests.torture.processes.cpu import Meter, busiest_thread
from tests.torture.record import Record
from tests.torture.schemas import ALICES_HOST_PORT
from tests.torture.server import Server

_CALIBRATION_SECONDS = 3.0
_SETTLE_SECONDS = 30.0
"""CPU time that the server may take to end what an attack has begun."""
_SETTLE_FACTOR = 4.0
"""Seconds in which it gets a second of CPU time on the busiest machine."""
_STEP_SECONDS = 0.25
_IDLE_SHARE = 0.3
"""Of one core, below which a server does nothing."""
_LATEST_SECONDS = 120.0
"""After the end of an attack; what takes longer is killed, and found."""


class Siege:
    """The attacks on one server.

    Args:
        server: has been started, and is quiet.
        record: takes what is found.
        seed: of what is drawn.
    """

    def __init__(self, server: Server, record: Record, seed: str) -> None:
        self._server = server
        self._record = record
        self._seed = seed
        self._target = Target(server.ports, server.shared_memory, ALICES_HOST_PORT)
        (pid,) = server.stubs()["openai_bls"]
        busiest = busiest_thread(pid, Bob(server.ports, Meter(server.family, (pid, pid))).some_of_the_loop)
        self._meter = Meter(server.family, (pid, busiest))
        self._bob = Bob(server.ports, self._meter)

    def run(self, words: str, seconds: float, over: Callable[[], bool]) -> None:
        """Each attack whose name has these words, for so many seconds each.

        Args:
            words: part of the names.
            seconds: of one attack.
            over: whether to begin no further one.
        """
        self._bob.store()
        # The first answers cost what no later one does.
        for name in self._bob.kinds:
            self._bob.look(name)
        with self._bob.looking() as looks:
            time.sleep(_CALIBRATION_SECONDS)
        self._record.quiet = quiet = quiet_costs(looks)
        for look in looks:
            if look.wrong:
                self._record.found(f"nobody attacks: bob's {look.name}: {look.wrong}")
        with _attackers() as attackers:
            for name in wanted(words):
                if over() or not self._server.running():
                    return
                fought = self._attack(attackers, name, seconds)
                self._record.fought.append(fought)
                for wrong in wrongs(fought, quiet):
                    self._record.found(f"{name}: {wrong}", **self._details(fought))

    def _attack(self, attackers: ProcessPoolExecutor, name: str, seconds: float) -> Fought:
        fought = Fought(name, f"{self._seed}/{name}")
        stubs = self._server.stubs()
        with self._bob.looking() as fought.looks:
            fought.outcome = _waited(attackers.submit(attack, name, self._target, seconds, fought.seed), seconds)
        attackers.submit(clean_up, name, self._target).result()
        fought.goes_on = self._settled()
        fought.looks.append(self._bob.look("stored things"))
        fought.restarted = [model for model, pids in self._server.stubs().items() if pids != stubs.get(model)]
        return fought

    def _settled(self) -> str:
        """Wait until the server has nothing to do; what it still does, if it never ends."""
        deadline = time.monotonic() + _SETTLE_FACTOR * _SETTLE_SECONDS
        most = self._meter.family_s() + _SETTLE_SECONDS
        while True:
            busy: dict[str, float] = {}
            with contextlib.suppress(httpx.HTTPError):
                busy = self._server.busy()
            before, begun = self._meter.family_s(), time.monotonic()
            time.sleep(_STEP_SECONDS)
            share = (self._meter.family_s() - before) / (time.monotonic() - begun)
            if not busy and share < _IDLE_SHARE:
                return ""
            if time.monotonic() > deadline or self._meter.family_s() > most:
                return ", ".join(busy) or "CPU time"

    def _details(self, fought: Fought) -> dict[str, object]:
        looks = sorted(fought.looks, key=lambda look: (bool(look.wrong), look.cpu_s, look.loop_s), reverse=True)
        return {
            "seed": fought.seed,
            "told": fought.outcome.told,
            "sent": list(fought.outcome.sent),
            "most_loop_s": fought.most_loop_s(),
            "looks": [vars(look) for look in looks[:20]],
            "quiet": self._record.quiet,
            "console": self._server.console()[-3000:],
        }


@contextlib.contextmanager
def _attackers() -> Iterator[ProcessPoolExecutor]:
    """A process for attackers: what they take of the interpreter is not taken from the quiet key's threads."""
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _waited(running: Future[Outcome], seconds: float) -> Outcome:
    try:
        return running.result(seconds + _LATEST_SECONDS)
    except TimeoutError:
        raise RuntimeError("an attacker does not leave") from None
