"""CPU time of a server's processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]

_STUB_SCRIPT = "model.py"


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
