"""Memory of a server's processes, read from /proc (Linux)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from benchmarks.cpu import tree_names

_PROC = Path("/proc")
_PEAK_INTERVAL_S = 0.25


@dataclass(frozen=True)
class Memory:
    """Of one process, or of several of the same name together, in MB (1,000,000 bytes)."""

    rss_mb: float
    """Resident; what processes share is counted in each of them."""
    pss_mb: float
    """Proportional: what processes share is divided among them."""


def parse_rollup(text: str) -> Memory:
    """Read a /proc/<pid>/smaps_rollup."""
    kilobytes = {}
    for line in text.splitlines()[1:]:
        name, _, rest = line.partition(":")
        if name in ("Rss", "Pss"):
            kilobytes[name] = int(rest.split()[0])
    return Memory(kilobytes.get("Rss", 0) * 1024 / 1e6, kilobytes.get("Pss", 0) * 1024 / 1e6)


def sample_memory(root: int, proc: Path = _PROC) -> dict[str, Memory]:
    """Memory of process `root` and everything below it by process name, largest first."""
    found: dict[str, Memory] = {}
    for pid, name in tree_names(root, proc).items():
        # It may end while we look.
        with contextlib.suppress(OSError):
            one = parse_rollup((proc / str(pid) / "smaps_rollup").read_text())
            so_far = found.get(name, Memory(0.0, 0.0))
            found[name] = Memory(so_far.rss_mb + one.rss_mb, so_far.pss_mb + one.pss_mb)
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
