"""Standard output and standard error of the launcher."""

from __future__ import annotations

import sys
import time


class Console:
    """Writes whole lines to standard output, stamped with the seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the console was made."""
        return time.monotonic() - self._start

    def line(self, text: str = "") -> None:
        """Write one line as it is."""
        sys.stdout.write(f"{text}\n")
        # Output often goes into a pipe (make, a container's log), where a held-back line is no
        # progress.
        sys.stdout.flush()

    def step(self, text: str) -> None:
        """Write one line with the elapsed seconds before it."""
        self.line(f"[{self.elapsed:6.1f} s] {text}")


def fail(message: str, program: str = "openai-bls serve") -> None:
    """Write one error line to standard error."""
    sys.stderr.write(f"{program}: error: {message}\n")
    sys.stderr.flush()
