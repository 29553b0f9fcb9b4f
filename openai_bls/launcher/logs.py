"""Reader of tritonserver's log: lines worth showing, and why a model did not load."""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING

from openai_bls.engines import registry
from openai_bls.engines.plugin import LoadStep
from openai_bls.triton_models.server.load_failure import load_failure

if TYPE_CHECKING:
    from pathlib import Path

_PREFIXED = re.compile(r'^([IWEF])\d{4} [\d:.]+ \d+ [\w.]+:\d+\] "?(.*?)"?$')
# A line of the request log (`pipeline.observation.request_log`), which holds what clients sent.
_REQUEST = re.compile(r'^(\{"time":")?\d{4}-\d\d-\d\dT[\d:.]+Z[" ]')
_LOADING = re.compile(r"^loading: ([^:]+):\S+$")
_LOADED = re.compile(r"^successfully loaded '([^']+)'")
_FAILED = re.compile(r"^failed to load '([^']+)' version \d+: (.*)$")
_STEP_FAILED = re.compile(r"^Invalid argument: ensemble '([^']+)' (depends on .*)$")
_POLL_FAILED = re.compile(r"^Poll failed for model directory '([^']+)': (.*)$")
_ENGINE = re.compile(r"^engine: (.*)$")
# Of `transport.engine_process.load_turns`.
_TURN = re.compile(r"^\S+ waits for \S.* to load: ")
_FATAL = re.compile(r"^(?:error: |tritonserver: |\S*tritonserver: )(.*)$")

# What every start prints on a machine without a GPU.
_NOISE = (
    "pinned_memory_manager.cc",
    "CudaDriverHelper has not been initialized",
    "Failed to initialize NVML",
    "DCGM unable to start",
    "unable to create stream for",
    "Signal (15) received",
    "Signal (2) received",
    # A failure to load is reported in our own words.
    "failed to load",
    "which has no loaded version",
    "Failed to create instance",
    "Poll failed for model directory",
    "error: creating server",
)
# Of models whose server stops, one after the other.
_HANGING_UP = "the connection to the "

DEPENDS = "depends on"
"""Words of a failure whose cause is another model's."""
_TOO_MANY_FILES = "Too many open files"
LOCK_TIMED_OUT = "lock_exception"
"""Last word of a tritonserver in whose load a process got no CPU time for seconds: a lock of the Python backend timed
out. Nothing is wrong with it: it can start again."""


class LogFollower:
    """Reads what has been added to a log file, line by line.

    Args:
        path: the file, which others append to.
        keep_bytes: empty the file once it has as many and all of them were read; None keeps all. What is written at
            that very moment may be lost.
    """

    def __init__(self, path: Path, keep_bytes: int | None = None) -> None:
        self._file = path.open("rb" if keep_bytes is None else "r+b")
        self._keep_bytes = keep_bytes
        self._rest = b""

    def lines(self) -> list[str]:
        """The complete lines since the last call."""
        added = self._file.read()
        if self._keep_bytes is not None and not added and self._file.tell() >= self._keep_bytes:
            self._file.seek(0)
            self._file.truncate()
        *lines, self._rest = (self._rest + added).split(b"\n")
        return [line.decode("utf-8", "replace").rstrip("\r") for line in lines]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class LoadWatcher:
    """Follows the models of a starting server through its log."""

    def __init__(self) -> None:
        self.loading: list[str] = []
        self.loaded: list[str] = []
        self.failed: dict[str, str] = {}
        self.fatal: str | None = None
        self.lock_timed_out = False
        """True after `LOCK_TIMED_OUT`."""
        self.in_usage = False
        self.engine_step = ""
        """Step of the start of an engine in a separate process; empty if it has not said so."""
        self._step_number = -1

    def feed(self, line: str) -> str | None:
        """Take one line in; a short message if it is news about a model."""
        if is_request(line):
            return None
        prefixed = _PREFIXED.match(line)
        text = prefixed.group(2) if prefixed else line
        if match := _LOADING.match(text):
            self.loading.append(match.group(1))
        elif (match := _LOADED.match(text)) and match.group(1) not in self.loaded:
            self.loaded.append(match.group(1))
            return f"loaded {match.group(1)}"
        elif match := _FAILED.match(text) or _POLL_FAILED.match(text) or _STEP_FAILED.match(text):
            if match.group(1) not in self.failed:
                self.failed[match.group(1)] = first_line(match.group(2))
                return f"{match.group(1)} failed to load"
        elif prefixed and (match := _ENGINE.match(text)):
            return self._engine_line(match.group(1))
        elif prefixed and _TURN.match(text):
            return text
        elif not prefixed and (match := _FATAL.match(line)):
            self.fatal = self.fatal or first_line(match.group(1))
        elif _TOO_MANY_FILES in line:
            self.fatal = self.fatal or f"{_TOO_MANY_FILES}: raise the limit on them (ulimit -n)"
        elif LOCK_TIMED_OUT in line:
            self.lock_timed_out = True
        elif line.startswith("Usage: tritonserver"):
            # After a bad flag the server prints some 400 lines of help.
            self.in_usage = True
        return None

    def _engine_line(self, line: str) -> str | None:
        step = _load_step(line)
        # Each of its processes tells of itself, and one may be behind another.
        if step is None or 0 < step.number < self._step_number:
            return None
        is_news = step.number != self._step_number
        self._step_number = step.number
        if is_news or step.parts:
            self.engine_step = ", ".join(part for part in (step.name, step.parts) if part)
        return f"engine: {step.name}" if is_news else None

    @property
    def waiting(self) -> list[str]:
        """Models that have begun to load and have neither loaded nor failed."""
        return [name for name in self.loading if name not in self.loaded and name not in self.failed]

    def reason(self) -> str | None:
        """One line on why the server did not start, or None if the log does not say."""
        if self.failed:
            # A model that failed takes down those that are made of it; the first failure is the
            # cause.
            causes = {name: why for name, why in self.failed.items() if DEPENDS not in why}
            return "; ".join(f"model {name} failed to load: {why}" for name, why in (causes or self.failed).items())
        return self.fatal


def _load_step(line: str) -> LoadStep | None:
    """The step that a line of an engine's process tells of; the line does not say of which engine it is."""
    readers = [one.load_step for one in registry.plugins() if one.load_step is not None]
    return next((step for read in readers if (step := read()(line)) is not None), None)


def first_line(escaped: str) -> str:
    """The first line of a message that Triton logged on one line, less its status code."""
    return load_failure(escaped.replace("\\n", "\n"))


def is_request(line: str) -> bool:
    """True for a line of the request log."""
    return _REQUEST.match(line) is not None


def worth_showing(line: str, *, stopping: bool = False) -> bool:
    """True for a warning or worse and for what a model prints; not for a table or the usual noise."""
    if is_request(line):
        return True
    match = _PREFIXED.match(line)
    if any(noise in line for noise in _NOISE) or (stopping and _HANGING_UP in line):
        return False
    return match.group(1) != "I" if match else bool(line.strip()) and line[0] not in "+|"


def tail(path: Path, count: int = 40) -> str:
    """The last lines of a file."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return "".join(deque(file, count)).rstrip()
