"""Samples of the server's processes: memory, open files, and their slopes."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field

import numpy as np
import psutil  # type: ignore[import-untyped]

_WARM_UP_SECONDS = 60.0
"""Left out of slopes: what a process takes at its first requests."""
_SHORTEST_SECONDS = 60.0


@dataclass
class History:
    """One process over time."""

    name: str
    pid: int
    seconds: list[float] = field(default_factory=list)
    resident_mb: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)

    @property
    def lifetime(self) -> float:
        """Seconds between the first sample and the last."""
        return self.seconds[-1] - self.seconds[0]

    def slopes(self) -> tuple[float, float] | None:
        """MB and open files per minute; None of a process that has lived for too short a time."""
        after = self.seconds[0] + _WARM_UP_SECONDS
        kept = [at for at, second in enumerate(self.seconds) if second >= after]
        if len(kept) < 3 or self.seconds[kept[-1]] - self.seconds[kept[0]] < _SHORTEST_SECONDS:
            return None
        minutes = [self.seconds[at] / 60 for at in kept]
        return (
            float(np.polyfit(minutes, [self.resident_mb[at] for at in kept], 1)[0]),
            float(np.polyfit(minutes, [self.files[at] for at in kept], 1)[0]),
        )


class Samples:
    """All processes that were ever there."""

    def __init__(self) -> None:
        self.histories: dict[int, History] = {}

    def take(self, family: dict[int, str]) -> None:
        """Look at the processes once."""
        now = time.monotonic()
        for pid, name in family.items():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                resident, files = process.memory_info().rss, process.num_fds()
                if not resident:
                    # A zombie.
                    continue
                history = self.histories.setdefault(pid, History(name, pid))
                # A stub is a shell for a moment.
                history.name = name
                history.seconds.append(now)
                history.resident_mb.append(resident / 2**20)
                history.files.append(files)

    def longest(self) -> list[History]:
        """Of each name the process that has lived longest."""
        best: dict[str, History] = {}
        for history in self.histories.values():
            if history.name not in best or history.lifetime > best[history.name].lifetime:
                best[history.name] = history
        return sorted(best.values(), key=lambda history: history.name)

    def peak_mb(self, name: str) -> float:
        """The most that any process of that name has had."""
        return max(max(history.resident_mb) for history in self.histories.values() if history.name == name)
