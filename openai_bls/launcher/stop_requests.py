"""Requests to stop that come to this process as signals."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def stop_requests() -> Iterator[Callable[[], int]]:
    """Counter of Ctrl-C and its like within the context; in the main thread only."""
    count = 0

    def note(_number: int, _frame: FrameType | None) -> None:
        nonlocal count
        count += 1

    previous = {number: signal.signal(number, note) for number in _STOP_SIGNALS}
    try:
        yield lambda: count
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
