"""CPU time of the server's processes and of its event loop's thread, read from outside."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_FAMILY_AGE_S = 1.0


def process_cpu_s(pid: int) -> float:
    """CPU time of all threads of a process, in steps of a tick; 0 if there is no such process."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return 0.0


def thread_cpu_s(pid: int, thread: int) -> float:
    """CPU time of one thread, to the nanosecond; 0 if there is no such thread."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0]) / 1e9
    return 0.0


def busiest_thread(pid: int, work: Callable[[], None]) -> int:
    """The thread of a process that `work` gives most to do."""
    threads = [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]
    before = {thread: thread_cpu_s(pid, thread) for thread in threads}
    work()
    return max(threads, key=lambda thread: thread_cpu_s(pid, thread) - before[thread])


def attend() -> None:
    """Let the calling thread run as soon as it can, before all others of the machine.

    Else the server goes on working, for others, between its answer and the moment in which its time is read. Where
    this is not allowed, the time read is more than it is.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


class Meter:
    """CPU time of a server; safe for threads.

    Args:
        family: finds its processes: id → name.
        loop: process and thread of the event loop.
        age_s: seconds after which processes are looked for anew.
    """

    def __init__(
        self, family: Callable[[], Mapping[int, str]], loop: tuple[int, int], age_s: float = _FAMILY_AGE_S
    ) -> None:
        self._age_s = age_s
        self._find = family
        self._loop = loop
        self._family: list[int] = []
        self._found = float("-inf")
        self._ended_s = 0.0
        self._last: dict[int, float] = {}
        self._lock = threading.Lock()

    def loop_s(self) -> float:
        """CPU time of the event loop's thread."""
        return thread_cpu_s(*self._loop)

    def family_s(self) -> float:
        """CPU time of all processes. What one has taken stays counted when it has ended."""
        with self._lock:
            now = time.monotonic()
            if now - self._found >= self._age_s:
                self._family, self._found = list(self._find()), now
                for pid in self._last.keys() - set(self._family):
                    self._ended_s += self._last.pop(pid)
            for pid in self._family:
                self._last[pid] = max(self._last.get(pid, 0.0), process_cpu_s(pid))
            return self._ended_s + sum(self._last.values())
