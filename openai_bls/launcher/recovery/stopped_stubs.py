"""Stubs that a signal has stopped: they are killed before Triton sends them a second request, which ends the server.

The kernel tells a stopped process (T) from one that other processes starve, which is runnable (R), that waits (S, D),
or that a debugger holds (t). So a machine with far too much to do gives no false alarm. Looks are counted, not time:
a launcher that was suspended along with the server has not looked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

LOOK_SECONDS = 0.25
"""Seconds between two looks at the states of known stubs, which ask no server."""
STOPPED_LOOKS = 8
"""Looks in a row after which a stopped process is killed; a pause of a second costs nobody anything."""


class StoppedStubs:
    """The stopped stubs of one server, over looks `LOOK_SECONDS` apart."""

    def __init__(self) -> None:
        self._looks: Counter[int] = Counter()

    @property
    def any(self) -> bool:
        """True if one was stopped at the last look."""
        return bool(self._looks)

    def look(self, stopped: Iterable[int]) -> list[int]:
        """Process ids of the stubs to kill.

        Args:
            stopped: process ids of the stubs that are stopped now.
        """
        self._looks = Counter({pid: self._looks[pid] + 1 for pid in stopped})
        return [pid for pid, count in self._looks.items() if count >= STOPPED_LOOKS]
