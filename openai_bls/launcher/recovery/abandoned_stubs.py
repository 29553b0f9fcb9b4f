"""Stubs that tritonserver has given up while they live: it waits for their end, for ever, and their model never loads.

It takes a stub for dead that shows no sign of life for a second while it loads, as on a machine with far too much to do
(up to 25.07, python_backend#408), and then waits for the end of a process that has no reason to end.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from openai_bls.launcher.recovery.supervisor import Stub

ABANDONED_LOOKS = 5
"""Looks in a row after which a stub that is waited for counts as abandoned: one that ends takes less."""
_WAIT4 = {"x86_64": "61", "aarch64": "260"}
"""Number of the system call `wait4`, in which `waitpid` is, by machine."""


def awaited_children(process: int) -> set[int]:
    """Process ids of the children for whose end a thread of `process` waits; none where the kernel does not tell."""
    number = _WAIT4.get(platform.machine())
    found = set()
    for task in Path(f"/proc/{process}/task").glob("*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            call, child, *_ = (task / "syscall").read_text().split()
            if call == number:
                found.add(int(child, 16))
    return found


class AbandonedStubs:
    """The stubs of one server that it has given up, over looks about a second apart."""

    def __init__(self) -> None:
        self._looks: Counter[int] = Counter()

    @property
    def any(self) -> bool:
        """Whether one was waited for at the last look."""
        return bool(self._looks)

    def look(self, server: int, stubs: Collection[int]) -> list[int]:
        """Process ids among the live `stubs` of the tritonserver `server` that are to be killed."""
        awaited = awaited_children(server).intersection(stubs) if stubs else set()
        self._looks = Counter({pid: self._looks[pid] + 1 for pid in awaited})
        return [pid for pid, count in self._looks.items() if count >= ABANDONED_LOOKS]

    def kill(self, server: int, stubs: Mapping[str, Sequence[Stub]]) -> list[str]:
        """Look, and kill those found, which lets the load of their model fail with the server's own reason.

        Args:
            server: process id of the tritonserver.
            stubs: live stubs of the server that are looked at, by model.

        Returns:
            The model of each that was killed.
        """
        models = {stub.pid: model for model, found in stubs.items() for stub in found}
        abandoned = self.look(server, models)
        for pid in abandoned:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return [models[pid] for pid in abandoned]
