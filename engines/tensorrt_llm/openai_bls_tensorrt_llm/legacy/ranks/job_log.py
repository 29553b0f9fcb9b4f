"""Reader of the log of an MPI job: which rank ended it."""

from __future__ import annotations

import re

from openai_bls.launcher.logs import is_request

# Written by guardian.py, for mpirun says nothing when the rank's exit code was 0.
_LEFT_ALONE = re.compile(r"^openai_bls: rank (\d+) has left the others$")
# Open MPI 4 writes the first sentence on one line, 5 on two.
_BY_SIGNAL = re.compile(r"^\w+ noticed that process rank (\d+) with PID \d+ on node (\S+) exited on")
_SIGNAL = re.compile(r"signal (\d+) \(([^)]*)\)")
# [[18050,1],1] in Open MPI 4, [prterun-node-9643@1,1] in 5.
_BY_CODE = re.compile(r"^\s*Process name: +\[.*,(\d+)\]\s*$")
_CODE = re.compile(r"^\s*Exit code: +(\d+)\s*$")
_TOO_FEW_SLOTS = ("not enough slots available", "allocated for this job are already filled")


class MpiJobLog:
    """Reader of what mpirun and the guardian say of the ranks.

    Args:
        world_size: number of ranks in the job.
    """

    def __init__(self, world_size: int) -> None:
        self._of = f"of {world_size}"
        self._rank: str | None = None
        self._node = ""
        self._end: str | None = None
        self._left: str | None = None
        self._slots = False

    def feed(self, line: str) -> None:
        """Take one line in."""
        if is_request(line):
            return
        if match := _LEFT_ALONE.match(line):
            self._left = self._left or match.group(1)
        self._slots = self._slots or any(text in line for text in _TOO_FEW_SLOTS)
        if self._end is not None:
            return
        if match := _BY_SIGNAL.match(line):
            self._rank, self._node = match.group(1), f" on {match.group(2)}"
        elif match := _BY_CODE.match(line):
            self._rank = match.group(1)
        if self._rank is None:
            return
        if match := _SIGNAL.search(line):
            self._end = f"was ended by signal {match.group(1)} ({match.group(2)})"
        elif match := _CODE.match(line):
            self._end = f"ended with exit code {match.group(1)}"

    def reason(self) -> str | None:
        """One line on why the job ended, or None if the log does not say."""
        if self._end is not None:
            return f"rank {self._rank} {self._of}{self._node} {self._end}, and the others were stopped"
        if self._left is not None:
            return f"rank {self._left} {self._of} ended, and the others were stopped"
        if self._slots:
            return "mpirun has fewer slots than ranks: give --oversubscribe, or --hosts with a slot for each GPU"
        return None
