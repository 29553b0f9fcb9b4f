"""Supervisor: which models of a running server to load again, by what is seen of their processes, and when."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

DEFAULT_RESTARTS = 5
"""Restarts within `WINDOW_SECONDS`."""
WINDOW_SECONDS = 600.0
_LONGEST_WAIT_SECONDS = 60.0
_MOST_STARVED = 3
"""Loads in a row that may fail for want of CPU time without counting as restarts."""

# Looks, about one a second, and no clock: a launcher that was suspended along with the server has not looked.
SILENT_LOOKS = 30
"""Looks in a row after which a process that runs and gives no answer is killed."""

# Stubs of one load start together; one that starts later is of another load.
_ONE_LOAD_SECONDS = 5.0


class Backoff:
    """Limit on restarts: the first at once, further ones after 1, 2, 4, ... seconds.

    Args:
        limit: most restarts within `WINDOW_SECONDS`.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._recent: deque[float] = deque()
        self._starved = 0

    def next(self, now: float, *, starved: bool = False) -> float | None:
        """Seconds to wait before the restart that is due now; None if it is one too many.

        Args:
            now: current time in seconds.
            starved: true after a load that failed for want of CPU time; `_MOST_STARVED` such restarts in a row come at
                once and do not count.
        """
        self._starved = self._starved + 1 if starved else 0
        if 0 < self._starved <= _MOST_STARVED:
            return 0.0
        while self._recent and now - self._recent[0] > WINDOW_SECONDS:
            self._recent.popleft()
        if len(self._recent) >= self._limit:
            return None
        wait = min(2.0 ** (len(self._recent) - 1), _LONGEST_WAIT_SECONDS) if self._recent else 0.0
        self._recent.append(now)
        return wait


@dataclass(frozen=True)
class Stub:
    """Process of a Python model, alive."""

    pid: int
    started: float
    """Seconds, on a clock that all stubs share."""
    stopped: bool = False
    """True if a signal has stopped the process (`stopped_stubs`)."""


@dataclass(frozen=True)
class Look:
    """The server at one moment."""

    ready: Collection[str]
    """Models that Triton calls ready: also those whose process has died, and none that is being loaded or unloaded."""
    stubs: Mapping[str, Sequence[Stub]]
    """Live stubs by model."""
    silent: Collection[str] = ()
    """Models that are asked and give no answer."""
    killed: Collection[str] = ()
    """Models of which a stopped process has been killed."""


@dataclass(frozen=True)
class Recovery:
    """A model to be loaded again; once that has ended, `Supervisor.ended` wants to know."""

    model: str
    reason: str
    """Cause of the recovery, as the end of a sentence."""
    wait_seconds: float | None
    """Time until the attempt; None if there were too many, and there is none."""
    kill: Sequence[int] = ()
    """Stubs to kill before."""


class Supervisor:
    """Watch over the models of one server.

    Args:
        limit: most restarts of a model within `WINDOW_SECONDS`.
        known: names of models that have stubs already; one of them may be gone at the first look.
    """

    def __init__(self, limit: int, known: Iterable[str] = ()) -> None:
        self._limit = limit
        self._models = {name: _Model(Backoff(limit)) for name in known}

    def decide(self, look: Look, now: float) -> list[Recovery]:
        """The models to be loaded again.

        Args:
            look: the server as it is.
            now: seconds on any clock.
        """
        for name in look.stubs:
            self._models.setdefault(name, _Model(Backoff(self._limit)))
        recoveries = []
        for name, model in self._models.items():
            fault = model.fault(name in look.ready, look.stubs.get(name, ()), silent=name in look.silent)
            if fault is not None and name in look.killed:
                fault = "has been stopped", fault[1]
            if fault is not None:
                reason, kill = fault
                wait = model.backoff.next(now)
                recoveries.append(Recovery(name, reason, wait, kill))
                if wait is None:
                    model.recovered(None)
                    model.left_alone = True
                else:
                    model.recovering = True
        return recoveries

    def ended(self, model: str, failure: str | None = None) -> None:
        """The attempt to load a model again has ended; it is loaded unless `failure` says why it is not."""
        self._models[model].recovered(failure)


class _Model:
    """State of one model, as far as it is known."""

    def __init__(self, backoff: Backoff) -> None:
        self.backoff = backoff
        self.recovering = False
        self._failure: str | None = None
        self.left_alone = False
        """True after too many restarts, until somebody loads the model."""
        self._pids: set[int] = set()
        """Process ids of the stubs of the model's last load."""
        self._missing = False
        self._silent = 0

    def recovered(self, failure: str | None) -> None:
        self.recovering = False
        self._failure = failure
        self._forget()

    def fault(self, ready: bool, stubs: Sequence[Stub], *, silent: bool) -> tuple[str, list[int]] | None:
        """Sentence on a model that is to be loaded again, else None, and the stubs to kill before."""
        if self.recovering:
            return None
        if self._failure is not None:
            return f"does not load: {self._failure}", []
        if not ready:
            self._forget()
            return None
        self._silent = self._silent + 1 if silent else 0
        fault: tuple[str, list[int]] | None = None
        if self._died(stubs):
            fault = "has died", []
        elif self._silent >= SILENT_LOOKS:
            fault = "does not answer", [stub.pid for stub in stubs]
        return fault

    def _died(self, stubs: Sequence[Stub]) -> bool:
        """True if one has gone."""
        if not stubs and not self._pids:
            # It died right after it was loaded; or it starts at this very moment, and is there at the next look.
            missing, self._missing = self._missing, True
            return missing and not self.left_alone
        self._missing = False
        if stubs:
            self.left_alone = False
        newest = max((stub.started for stub in stubs), default=0.0)
        pids = {stub.pid for stub in stubs if stub.started > newest - _ONE_LOAD_SECONDS}
        # Beside new ones, those of an earlier load have ended as they should.
        died = bool(self._pids - pids) and not pids - self._pids
        self._pids = pids
        return died

    def _forget(self) -> None:
        self._pids = set()
        self._missing = False
        self._silent = 0
