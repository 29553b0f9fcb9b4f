"""Rests of a soak: what each process of the server holds while nobody asks anything, by kind, and how that grows."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import numpy as np
import psutil  # type: ignore[import-untyped]

_FEWEST_RESTS = 3
"""Rests after the first from which something that grows in each is a leak."""
_NUMBERS = re.compile(r"[0-9a-f-]{8,}|\d+")
_TCP_STATES = {"01": "established", "08": "close-wait", "0A": "listening"}


@dataclass(frozen=True)
class Held:
    """What a process holds at one moment."""

    name: str
    resident_mb: float
    threads: int
    files: Counter[str]
    """Kind of an open file → number."""


@dataclass(frozen=True)
class Rest:
    """Process id → what it held all through a rest."""

    seconds: float
    """Since the begin of the run."""
    held: Mapping[int, Held]


@dataclass(frozen=True)
class Growth:
    """What has become of a process between the first rest and the last."""

    first: Held
    last: Held
    per_hour: tuple[float, float, float]
    """MB, threads and open files, of a straight line through all rests."""

    @property
    def kinds(self) -> dict[str, int]:
        """Kind of the open files that have become more or fewer → by how many."""
        kinds = sorted(self.first.files.keys() | self.last.files.keys())
        return {kind: more for kind in kinds if (more := self.last.files[kind] - self.first.files[kind])}


def held(family: Mapping[int, str]) -> dict[int, Held]:
    """What each process of a family holds now; those that have ended are left out."""
    found = {}
    for pid, name in family.items():
        with contextlib.suppress(OSError, psutil.Error):
            process = psutil.Process(pid)
            resident = process.memory_info().rss
            # A zombie has no memory.
            if resident:
                found[pid] = Held(name, resident / 2**20, process.num_threads(), open_files(pid))
    return found


def open_files(pid: int) -> Counter[str]:
    """Number of a process's open files by kind: a TCP connection's state and the server's port, a file's path.

    Raises:
        OSError: there is no such process, or it is another user's.
    """
    sockets = _sockets(pid)
    kinds: Counter[str] = Counter()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        # Some are closed meanwhile.
        with contextlib.suppress(OSError):
            target = str(entry.readlink())
            kind, _, inode = target.partition(":[")
            if kind == "socket":
                kinds[sockets.get(inode.rstrip("]"), "socket")] += 1
            else:
                kinds["pipe" if kind == "pipe" else _NUMBERS.sub("#", target)] += 1
    return kinds


def _sockets(pid: int) -> dict[str, str]:
    """Inode of each socket in the process's network namespace → kind."""
    net = Path(f"/proc/{pid}/net")
    found = {}
    with contextlib.suppress(OSError, IndexError):
        found = {line.split()[6]: "unix" for line in (net / "unix").read_text().splitlines()[1:]}
    rows = []
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            rows += [line.split() for line in (net / table).read_text().splitlines()[1:]]
    listening = {_port(row[1]) for row in rows if _TCP_STATES.get(row[3]) == "listening"}
    for row in rows:
        state, port = _TCP_STATES.get(row[3], "closing"), _port(row[1])
        found[row[9]] = f"tcp {state} on {port}" if port in listening else f"tcp {state} to {_port(row[2])}"
    return found


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


def rest(seconds: float, looks: Sequence[Mapping[int, Held]]) -> Rest:
    """A rest of several looks: the least of each number, for what comes and goes is not held.

    Args:
        seconds: since the begin of the run.
        looks: what `held` found, of which there is at least one.
    """
    return Rest(seconds, {
        pid: Held(
            looks[-1][pid].name,
            min(look[pid].resident_mb for look in looks),
            min(look[pid].threads for look in looks),
            reduce(lambda one, other: one & other, (look[pid].files for look in looks)),
        )
        for pid in looks[-1] if all(pid in look for look in looks)
    })  # fmt: skip


def growths(rests: Sequence[Rest]) -> list[Growth]:
    """Of each process that was there at all rests, by name; none of fewer than two rests."""
    if len(rests) < 2:
        return []
    there = set.intersection(*(set(one.held) for one in rests))
    hours = [one.seconds / 3600 for one in rests]
    found = []
    for pid in there:
        states = [one.held[pid] for one in rests]
        series = ([s.resident_mb for s in states], [s.threads for s in states], [s.files.total() for s in states])
        mb, threads, files = (float(np.polyfit(hours, values, 1)[0]) for values in series)
        found.append(Growth(states[0], states[-1], (mb, threads, files)))
    return sorted(found, key=lambda growth: growth.first.name)


def leaks(rests: Sequence[Rest]) -> list[str]:
    """A sentence for each kind of file, and for threads, of which a process had more at every rest than at the last.

    The first rest is left out: what is opened once may be opened in the first legs.
    """
    later = rests[1:]
    if len(later) < _FEWEST_RESTS:
        return []
    found = []
    for pid in set.intersection(*(set(one.held) for one in later)):
        states = [one.held[pid] for one in later]
        counts = {kind: [s.files[kind] for s in states] for kind in states[-1].files}
        counts["threads"] = [s.threads for s in states]
        found += [
            f"{states[-1].name} holds more at every rest: {kind} {numbers[0]} → {numbers[-1]}"
            for kind, numbers in counts.items()
            if all(before < after for before, after in itertools.pairwise(numbers))
        ]
    return sorted(found)
