"""Processes of an executor's ranks on this machine, which end without telling the LLM API.

It spawns them by MPI as descendants of this process. One that is killed leaves its future undone, and requests wait for
it for ever (before pull request 16338).
"""

from __future__ import annotations

import os
from pathlib import Path

from openai_bls.core.processes.process_tree import descendants

# Programs of ranks: mpi4py's worker, and that of `trtllm-llmapi-launch`.
_PROGRAMS = (b"mpi4py.futures.server", b"mgmn_worker_node", b"mgmn_leader_node")
# Fields of /proc/<pid>/stat after the name: the state, and the start time in ticks since the boot.
_STATE, _START = 0, 19
_ENDED = ("Z", "X")


class RankProcesses:
    """The ranks that run now below a process; later looks tell whether they still do.

    Args:
        pid: process id; None is this process.
    """

    def __init__(self, pid: int | None = None) -> None:
        self._ranks = _ranks(pid or os.getpid())

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the ranks."""
        return tuple(self._ranks)

    def alive(self) -> bool:
        """True unless one of them has ended."""
        return all(_started(pid) == start for pid, start in self._ranks.items())


def _ranks(root: int) -> dict[int, str]:
    """Process id of each rank → its start time."""
    ranks = [pid for pid in descendants(root) if any(program in _command(pid) for program in _PROGRAMS)]
    return {pid: start for pid in ranks if (start := _started(pid)) is not None}


def _started(pid: int) -> str | None:
    """Start time of a process; None if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[_STATE] in _ENDED else fields[_START]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
