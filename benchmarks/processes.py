"""CPU time and memory of a server's processes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil  # type: ignore[import-untyped]

_PEAK_INTERVAL_S = 0.25
_STUB_SCRIPT = "model.py"


@dataclass(frozen=True)
class Memory:
    """Of one process, or of several of the same name together, in MB (1,000,000 bytes)."""

    rss_mb: float
    """Resident; what processes share is counted in each of them."""
    pss_mb: float
    """Proportional: what processes share is divided among them."""


CpuSample = dict[tuple[int, str], float]
"""CPU seconds at one moment, by process id and name."""


def _tree(root: int) -> Iterator[tuple[psutil.Process, str]]:
    """Process `root` and everything below it, with names."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(root)
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                yield one, _label(one)


def _label(process: psutil.Process) -> str:
    """The model's name for a Python-backend stub, whose argument is `<model>/<version>/model.py`, else its own."""
    for argument in process.cmdline():
        path = Path(argument)
        if path.name == _STUB_SCRIPT and len(path.parts) > 2:
            return path.parts[-3]
    return str(process.name())


def sample_cpu(root: int) -> CpuSample:
    """CPU time of process `root` and everything below it."""
    seconds: CpuSample = {}
    for process, name in _tree(root):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            seconds[process.pid, name] = times.user + times.system
    return seconds


def cpu_used(before: CpuSample, after: CpuSample) -> dict[str, float]:
    """CPU seconds from one sample to another by process name, largest first; names that occur twice are added up.

    What a process used after its last sample is lost when it ends.
    """
    used: dict[str, float] = {}
    for (pid, name), seconds in after.items():
        used[name] = used.get(name, 0.0) + seconds - before.get((pid, name), 0.0)
    return dict(sorted(used.items(), key=lambda item: -item[1]))


def machine_seconds() -> float:
    """CPU seconds of everything on this machine since it started, idle time and waiting left out."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def sample_memory(root: int) -> dict[str, Memory]:
    """Memory of process `root` and everything below it by process name, largest first."""
    found: dict[str, Memory] = {}
    for process, name in _tree(root):
        with contextlib.suppress(psutil.Error):
            one = process.memory_full_info()
            so_far = found.get(name, Memory(0.0, 0.0))
            found[name] = Memory(so_far.rss_mb + one.rss / 1e6, so_far.pss_mb + one.pss / 1e6)
    return dict(sorted(found.items(), key=lambda item: -item[1].pss_mb))


def total_pss_mb(sample: Mapping[str, Memory]) -> float:
    """Of all processes."""
    return sum(one.pss_mb for one in sample.values())


class Peak:
    """Watches a server's memory while a block runs; `memory` is then the sample with the highest total."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)
        self.memory: dict[str, Memory] = {}

    def _watch(self) -> None:
        while not self._stop.wait(_PEAK_INTERVAL_S):
            sample = sample_memory(self._root)
            if total_pss_mb(sample) > total_pss_mb(self.memory):
                self.memory = sample

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
