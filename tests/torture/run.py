"""Run: cases, known streams and bad clients at the same time, while one thing after another is broken."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from openai_bls.triton_models.tensors.models import MODELS
from tests.torture import faults
from tests.torture.attacks.siege import Siege
from tests.torture.load import Load, end_of
from tests.torture.pictures import image_host
from tests.torture.processes.rests import Rest, held, leaks, rest
from tests.torture.processes.samples import Samples
from tests.torture.record import SLACK_SECONDS, Broken, Record
from tests.torture.schemas import SEES
from tests.torture.server import Server
from tests.torture.streams import WAYS, KnownStreams
from tests.torture.verdicts import stalls

_RECOVERY_SECONDS = 300.0
_QUIET_SECONDS = 3.0
"""Between the consequences of one fault and the next, so that answers with nothing broken are seen too."""
_PROBE_SECONDS = 15.0
_SETTLE_SECONDS = 60.0
_REST_SECONDS = 5
"""Looks at the processes in a rest, one a second."""
_TELL_SECONDS = 60.0
_MOST_RESIDENT_MB = {"tensorrt_llm": 2000.0, f"tensorrt_llm_{SEES}": 2000.0}
_MOST_RESIDENT_MB_OF_OTHERS = 700.0
_MOST_FURTHER_FILES = 200


@dataclass(frozen=True)
class Options:
    """Options of a run."""

    seconds: float = 600.0
    """Of cases and faults, after the attacks."""
    cases: int = 0
    """Goes on until there were so many, too."""
    seed: int = 0
    fuzzers: int = 3
    askers: int = 3
    with_faults: bool = True
    faults: str = ""
    """Words in the names of those that are wanted."""
    every_fault: bool = False
    """Goes on until each has come up, too."""
    attack_seconds: float = 0.0
    """Of each attack; 0 is none."""
    attacks: str = ""
    """Words in the names of those that are wanted."""
    leg_seconds: float = math.inf
    """Between two rests, in which nobody asks and all that the processes hold is counted by kind."""


class Run:
    """A run against one server.

    Args:
        server: not started.
        options: of the run.
        record: takes what is seen.
        tell: takes a line about its progress, once a minute.
    """

    def __init__(
        self, server: Server, options: Options, record: Record, tell: Callable[[str], object] = lambda line: None
    ) -> None:
        self._tell = tell
        self._server = server
        self._options = options
        self.record = record
        self.samples = Samples()
        self.rests: list[Rest] = []
        self.seconds = 0.0
        self.has_disks = server.has_disks
        self._token_ids: dict[str, tuple[list[int], list[int]]] = {}
        self._ended = threading.Event()
        self._interrupted = threading.Event()
        self._load: Load
        self._told = 0.0

    def run(self) -> None:
        """Start the server, torture it, and stop it."""
        with image_host():
            self._run()

    def _run(self) -> None:
        server, options = self._server, self._options
        try:
            server.start()
            self._learn()
            watch = self.record.thread("watch", self._watch)
            begun = time.monotonic()
            sequence = faults.order(random.Random(f"{options.seed}/faults"), options.faults)
            try:
                # Before anything is broken, and with it what is stored.
                self._besiege()
                begun = time.monotonic()
                while not self._over(begun):
                    self._leg(begun, sequence)
                    self._rest(begun)
            finally:
                self._ended.set()
                watch.join()
                self.seconds = time.monotonic() - begun
            self._look_at_the_end()
        finally:
            server.kill()

    def _besiege(self) -> None:
        options = self._options
        if options.attack_seconds:
            siege = Siege(self._server, self.record, str(options.seed))
            siege.run(options.attacks, options.attack_seconds, self._interrupted.is_set)

    def _leg(self, begun: float, sequence: Iterator[faults.Fault]) -> None:
        """Ask and break things, to the end of the run or to the next rest; then no client has a connection."""
        # Each leg asks something else.
        self._load = Load(self._server.ports, self.record, f"{self._options.seed}/{len(self.rests)}", self._token_ids)
        self._load.start(self._options.fuzzers, self._options.askers)
        try:
            self._break_things(begun, sequence)
        finally:
            self._load.stop()

    def _rest(self, begun: float) -> None:
        """Count what the processes hold once nothing is in progress; without legs there are no rests."""
        if self._options.leg_seconds == math.inf or not self._server.running() or self._left_behind():
            return
        looks = []
        for _ in range(_REST_SECONDS):
            time.sleep(1.0)
            looks.append(held(self._server.family()))
        self.rests.append(rest(time.monotonic() - begun, looks))

    def interrupt(self) -> None:
        """End it as if its time were over."""
        self._interrupted.set()

    def _over(self, begun: float) -> bool:
        if self._interrupted.is_set():
            return True
        enough = self.record.cases >= self._options.cases and not (self._options.every_fault and self.missing_faults())
        return not self._server.running() or (enough and time.monotonic() - begun >= self._options.seconds)

    def missing_faults(self) -> list[str]:
        """Names of the wanted faults that have never come up."""
        wanted = faults.wanted(self._options.faults) if self._options.with_faults else []
        had = {broken.name for broken in self.record.faults}
        return [fault.name for fault in wanted if fault.name not in had and self._can(fault)]

    def _can(self, fault: faults.Fault) -> bool:
        return self.has_disks or not fault.disk

    def _learn(self) -> None:
        streams = KnownStreams(self._server.ports, self._token_ids)
        streams.learn()
        streams.close()

    # --- what is broken ---

    def _break_things(self, begun: float, sequence: Iterator[faults.Fault]) -> None:
        """Break one thing after another, until the run or the leg is over."""
        end = time.monotonic() + self._options.leg_seconds
        while not self._over(begun) and time.monotonic() < end:
            now = time.monotonic()
            if now - max(self._told, begun) > _TELL_SECONDS:
                self._told = now
                self._tell(
                    f"{now - begun:.0f} s: {self.record.cases:,} cases, {len(self.record.faults)} faults, "
                    f"{len(self.record.findings)} findings"
                )
            time.sleep(SLACK_SECONDS + _QUIET_SECONDS)
            fault = next(sequence)
            if not self._options.with_faults or not self._can(fault) or self._over(begun):
                continue
            with self.record.fault(fault.name) as broken:
                self._break(fault, broken)
        if not self._server.running():
            self.record.found("the launcher has ended", console=self._server.console()[-5000:])

    def _break(self, fault: faults.Fault, broken: Broken) -> None:
        said = len(self._server.console())
        try:
            broken.outcome = fault.inject(self._server)
        except Exception as error:
            broken.outcome = repr(error)[:80]
            self.record.found(
                f"{fault.name}: {repr(error)[:80]}",
                detail=str(error),
                console=self._server.console()[said:],
                log=self._server.last_words,
            )
            return
        since = time.monotonic() if fault.lasting else broken.begun
        recovered = self._recovered()
        now = time.monotonic()
        if self._server.crippled:
            self._load.give_up_lost(now)
        if recovered:
            broken.recovery = now - since
        else:
            self.record.found(f"{fault.name}: not recovered", console=self._server.console()[said:])
        broken.waited = self._server.waited_seconds(said)

    def _recovered(self) -> bool:
        """Wait until every model has a process and every door answers."""
        deadline = time.monotonic() + _RECOVERY_SECONDS
        probe = KnownStreams(self._server.ports, self._token_ids, _PROBE_SECONDS)
        stubs = {name for name, model in MODELS.items() if not model.steps}
        try:
            while time.monotonic() < deadline and self._server.running():
                if stubs <= self._server.stubs().keys() and self._server.healthy():
                    doors = ("/v1/chat/completions", "generate tensorrt_llm_bls", "generate ensemble")
                    ends = [end_of(partial(probe.check, door, WAYS[door][1][0]))[0] for door in doors]
                    if ends == ["exact"] * len(doors):
                        return True
                time.sleep(0.1)
        finally:
            probe.close()
        return False

    # --- what is seen ---

    def _watch(self) -> None:
        begin = 0
        server = 0
        while not self._ended.wait(1.0):
            family = self._server.family()
            self.samples.take(family)
            now = self._server.tritonserver()
            if now != server:
                server, begin = now, 0
            begun = time.monotonic() - 1.0
            try:
                text = self._server.log_tail(begin)
            except OSError:
                # There is no server at the moment.
                continue
            begin += len(text.encode(errors="replace"))
            for endpoints in stalls(text):
                self.record.found(f"the event loop stood while these were at work: {endpoints}", log=text[-3000:])
            if "Traceback" in text and not self.record.met(begun, time.monotonic()):
                at = text.index("Traceback")
                self.record.found("a traceback in the log", log=text[max(0, at - 500) : at + 3000])

    def _left_behind(self) -> bool:
        """Wait until the server has no request in progress; True, and a finding, if it keeps some."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while (busy := self._server.busy()) and time.monotonic() < deadline:
            time.sleep(0.2)
        if busy:
            self.record.found(f"left behind in the server: {busy}")
        return bool(busy)

    def _look_at_the_end(self) -> None:
        """Nothing is left behind: no request, no memory, no file, no process."""
        server, record = self._server, self.record
        if not server.running():
            return
        # A rest has said so.
        if not self.rests:
            self._left_behind()
        for leak in leaks(self.rests):
            record.found(leak)
        self.samples.take(server.family())
        for history in self.samples.histories.values():
            peak, most = max(history.resident_mb), _MOST_RESIDENT_MB.get(history.name, _MOST_RESIDENT_MB_OF_OTHERS)
            if peak > most:
                record.found(f"{history.name} took {peak:.0f} MB")
            if history.files[-1] > history.files[0] + _MOST_FURTHER_FILES:
                record.found(f"{history.name} has {history.files[-1]} open files, {history.files[0]} at first")
        crippled = server.crippled
        code = server.stop(at_once=crippled)
        if code is None or (code != 0 and not crippled and not server.kept_by_triton()):
            record.found(f"the last stop: exit code {code}", log=server.last_words[-5000:])
        if left := server.family():
            record.found(f"processes left behind: {left}")
