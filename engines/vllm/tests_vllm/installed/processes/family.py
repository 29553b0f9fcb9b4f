"""Processes of an engine: those below it, by the names that vLLM gives them, and what they would leave behind."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path

from openai_bls.core.processes.process_tree import descendants


def parent(pid: int) -> int:
    """Process that has started a process."""
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])


def title(pid: int) -> str:
    """Command line of a process, or the name that it gives itself; empty once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


class Family:
    """Guardian of an engine, the processes below it, and their files: shared memory, and the temporary folder.

    Args:
        guardian: its process id.
    """

    def __init__(self, guardian: int) -> None:
        self.members = [guardian, *descendants(guardian)]
        self._ends = [os.pidfd_open(member) for member in self.members]
        self.files: set[Path] = set()
        for member in self.members:
            self._look(Path(f"/proc/{member}"))

    def the_one(self, name: str) -> int:
        """The process whose name begins so."""
        (found,) = [member for member in self.members if title(member).startswith(name)]
        return found

    def _look(self, process: Path) -> None:
        for line in (process / "maps").read_text(encoding="utf-8").splitlines():
            if "/dev/shm/" in line and not line.endswith("(deleted)"):
                self.files.add(Path(line[line.index("/dev/shm/") :]))
        for variable in (process / "environ").read_bytes().decode(errors="replace").split("\0"):
            name, _, value = variable.partition("=")
            if name == "OPENAI_BLS_PROCESS_FOLDER":
                self.files.add(Path(value))

    def wait_end(self, seconds: float) -> None:
        """Wait until all have ended."""
        deadline = time.monotonic() + seconds
        for end in self._ends:
            ready, _, _ = select.select([end], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "a process has not ended"
            os.close(end)

    def left(self) -> list[Path]:
        """Files that are still there."""
        return [path for path in self.files if path.exists()]
