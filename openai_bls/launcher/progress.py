"""Progress bars for what takes long: on a terminal, if rich is installed; elsewhere nothing is drawn."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_BLOCK_BYTES = 1 << 24

Advance = Callable[[int], None]
"""Takes how much has been done since the last call; threads may call it."""


class Bar:
    """Bar on standard output, with lines that are printed meanwhile above it.

    Args:
        what: stands before it.
        total: bytes, or with `counted` things.
        counted: name of the things; empty for bytes, which have a speed and a remaining time.
    """

    def __init__(self, what: str, total: int, counted: str = "") -> None:
        self.shown = total > 0 and sys.stdout.isatty() and importlib.util.find_spec("rich") is not None
        self._bar: Any = None
        if self.shown:
            self._bar = _started(counted)
            self._task = self._bar.add_task(what, total=total)

    def advance(self, amount: int) -> None:
        """Advance by `amount`."""
        if self._bar is not None:
            self._bar.advance(self._task, amount)

    def reach(self, done: int) -> None:
        """Set the part that is done."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done)

    def close(self) -> None:
        """Remove the bar; idempotent."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


@contextmanager
def bar(what: str, total: int, counted: str = "") -> Iterator[Bar]:
    """A `Bar` until the end of the block."""
    shown = Bar(what, total, counted)
    try:
        yield shown
    finally:
        shown.close()


def copy(source: Path, target: Path, advance: Advance) -> None:
    """Copy the content of a file."""
    with source.open("rb") as reading, target.open("wb") as writing:
        while block := reading.read(_BLOCK_BYTES):
            writing.write(block)
            advance(len(block))


def _started(counted: str) -> Any:
    from rich import progress

    columns: list[Any] = [progress.TextColumn("{task.description}"), progress.BarColumn()]
    if counted:
        columns += [progress.MofNCompleteColumn(), progress.TextColumn(counted), progress.TimeElapsedColumn()]
    else:
        columns += [progress.DownloadColumn(), progress.TransferSpeedColumn(), progress.TimeRemainingColumn()]
    made = progress.Progress(*columns, transient=True)
    made.start()
    return made
