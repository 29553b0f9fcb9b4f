"""Files that may change while the server runs: looked at when they are needed, at most once a second."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

CHECK_INTERVAL_S = 1.0
"""Seconds between two looks whether a file has changed."""


class WatchedFiles:
    """State of some files, as of the last look.

    What a look finds is the state before the files are read, so that a change while they are read is found by the next.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = tuple(paths)
        self._state = self._now()
        self._looked_at = time.monotonic()

    def changed(self) -> bool:
        """True if a file has changed, come or gone since the last look; False until a second after that."""
        now = time.monotonic()
        if not self._paths or now - self._looked_at < CHECK_INTERVAL_S:
            return False
        self._looked_at = now
        before, self._state = self._state, self._now()
        return self._state != before

    def _now(self) -> list[tuple[int, ...] | None]:
        return [_state(path) for path in self._paths]


def _state(path: Path) -> tuple[int, ...] | None:
    """Identity of a file's content, links followed; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
