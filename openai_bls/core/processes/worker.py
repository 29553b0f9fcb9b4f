"""Worker process: does jobs that come by standard input, each within a budget of CPU time, all within one of memory.

    python -I -S worker.py <path of the job's module> <CPU seconds of a job> <bytes of memory> <folder of packages>...

Run by path, in an environment without secrets. The module has `load()`, which imports what the jobs need, and
`answer(source, target)`, which reads one job, answers it and returns False when there will be no more. A job that
exceeds its CPU time ends the process by SIGPROF, in C code too; more memory than allowed is a MemoryError.
"""

from __future__ import annotations

import importlib.util
import io
import resource
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import cast

_OPEN_FILES = 16
"""Open files that a process may have: a module that Python loads where it is needed is still to be opened."""


def limit(memory_bytes: int) -> None:
    """Give up what jobs do not need: more memory, files, core dumps, children.

    Args:
        memory_bytes: most bytes of address space beyond what is in use now.
    """
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    address_space = pages * resource.getpagesize() + memory_bytes
    for kind, most in (
        (resource.RLIMIT_AS, address_space),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
    ):
        resource.setrlimit(kind, (most, most))


def loaded(path: str) -> ModuleType:
    """The module at a path, with what its jobs need."""
    spec = importlib.util.spec_from_file_location("job", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.load()
    return module


def main(path: str, cpu_s: float, memory_bytes: int, folders: list[str]) -> None:
    """Do jobs until the input ends."""
    sys.path.extend(folders)
    job = loaded(path)
    limit(memory_bytes)
    # The thread that started this process may have blocked it.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    source, target = cast("io.BufferedReader", sys.stdin.buffer), sys.stdout.buffer
    more = True
    while more and source.peek(1):
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        more = job.answer(source, target)
        target.flush()
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
