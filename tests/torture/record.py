"""Record of a run: what was asked and answered, what was broken and when, and what was wrong."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.torture.attacks.judgement import Fought

SLACK_SECONDS = 5.0
"""Time after a fault in which its consequences are still met: /health is a second old, and clients reconnect."""
_MOST_SAVED = 10
"""Findings of one head."""


@dataclass
class Broken:
    """A fault that was injected."""

    name: str
    begun: float
    ended: float | None = None
    """When everything answered again."""
    outcome: str = ""
    recovery: float | None = None
    """Seconds to there: from its begin, or, of a fault that lasts, from its end."""
    waited: float = 0.0
    """Seconds of it that the launcher let pass before a restart."""
    streams: Counter[str] = field(default_factory=Counter)
    """Known streams that met it, by how they ended."""


class Record:
    """What is known of a run; safe for threads.

    Args:
        folder: for the findings.
    """

    def __init__(self, folder: Path) -> None:
        self.statuses: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Door → statuses of its cases."""
        self.streams: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Door → ends of its known streams."""
        self.antics: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.faults: list[Broken] = []
        self.fought: list[Fought] = []
        self.quiet: dict[str, float] = {}
        """Kind of bob's requests → CPU time of an answer while nobody attacks."""
        self.findings: list[str] = []
        self.heads: Counter[str] = Counter()
        self.slowest: dict[str, float] = {}
        """Door → seconds of its slowest case with nothing broken."""
        self.lock = threading.Lock()
        self._folder = folder

    @property
    def cases(self) -> int:
        """Number of cases that were answered."""
        return sum(sum(counts.values()) for counts in list(self.statuses.values()))

    def thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        """Start a thread of the torture, whose own mistakes are findings."""

        def guarded() -> None:
            try:
                work()
            except Exception as error:
                self.found(f"the torture itself: {error!r}")
                raise

        thread = threading.Thread(target=guarded, name=name)
        thread.start()
        return thread

    @contextlib.contextmanager
    def fault(self, name: str) -> Iterator[Broken]:
        """The time in which something is broken."""
        broken = Broken(name, time.monotonic())
        with self.lock:
            self.faults.append(broken)
        try:
            yield broken
        finally:
            broken.ended = time.monotonic()

    def met(self, begun: float, ended: float) -> list[Broken]:
        """Faults in force at some moment between two others."""
        with self.lock:
            return [
                fault
                for fault in self.faults
                if fault.begun <= ended and (fault.ended is None or fault.ended + SLACK_SECONDS >= begun)
            ]

    def found(self, head: str, **details: Any) -> None:
        """Keep a finding, and save the first of them."""
        with self.lock:
            self.findings.append(head)
            self.heads[head] += 1
            count, same = len(self.findings), self.heads[head]
        if same <= _MOST_SAVED:
            self._folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"finding": head, **details}, indent=1, ensure_ascii=True)
            (self._folder / f"{count:04}.json").write_text(text + "\n")
