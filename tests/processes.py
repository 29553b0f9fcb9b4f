"""What the processes of a test say and do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import IO

import pytest

PATIENCE_S = 60.0
"""Far beyond what any step takes: a test that waits this long has failed."""


def lines_until(stream: IO[str] | None, sign: str) -> list[str]:
    """Lines of a process up to the one with `sign`, without which the test fails."""
    assert stream is not None
    lines = []
    for line in stream:
        lines.append(line)
        if sign in line:
            return lines
    pytest.fail("".join(lines[-30:]))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail("waited in vain")
        time.sleep(0.02)
