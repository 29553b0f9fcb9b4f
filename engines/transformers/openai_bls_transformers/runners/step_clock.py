"""Clock of overlapping steps: the next one is prepared as late as keeps the device busy.

When steps overlap, the next one is launched while one runs. Were it launched at once, a request that comes a moment
later would wait for two steps; a long one with prompts takes 25 ms. How long the running one takes is known from
others of its size.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

_LEAD_S = 0.002
"""Seconds before the end of the running step by which the next one is launched: the machine may be late too."""
_FORGETTING = 1.05
"""Growth of the shortest time seen per step that took longer: contexts grow."""
_ROUNDING = 64
"""Tokens by which sizes are told apart."""
_LOOK_S = 0.0005
"""Seconds between two looks whether the running step has ended before it was expected to."""


class StepSize(NamedTuple):
    """What the time of a step depends on, nearly."""

    decoding: bool
    """One new token for each sequence."""
    tokens: int
    """Tokens of the step in units of `_ROUNDING`."""


class StepClock:
    """Times of the steps that were launched, in their order."""

    def __init__(
        self,
        is_over: Callable[[], bool],
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Start with no step.

        Args:
            is_over: true if the device has done all that it was given.
            now: seconds by a clock.
            sleep: lets so many seconds pass.
        """
        self._is_over, self._now, self._sleep = is_over, now, sleep
        self._running: deque[tuple[StepSize, float]] = deque()
        """Steps that have not ended, each with the moment of its launch."""
        self._shortest: dict[StepSize, float] = {}
        """Seconds that a step of each size took at least, of late."""
        self._last_end = self._prepared_from = now()
        self._preparing = 0.0
        """Seconds from the wait to the launch, the longest of late."""
        self._over_at: float | None = None
        """Moment at which the running step was seen to be over, before its results were asked for."""

    def wait(self) -> None:
        """Let time pass until the next step must be prepared."""
        if len(self._running) == 1:
            size, launched = self._running[0]
            until = max(self._last_end, launched) + self._seconds(size) - _LEAD_S - self._preparing
            while (left := until - self._now()) > 0:
                if self._is_over():
                    self._over_at = self._now()
                    break
                self._sleep(min(left, _LOOK_S))
        self._prepared_from = self._now()

    def launched(self, decoding: bool, tokens: int) -> None:
        """Note a step that the device has been given."""
        now = self._now()
        self._preparing = max(now - self._prepared_from, self._preparing / _FORGETTING)
        self._running.append((StepSize(decoding, tokens // _ROUNDING), now))

    def ended(self) -> None:
        """Note that the results of the oldest step are there."""
        now, self._over_at = self._over_at or self._now(), None
        if self._running:
            size, launched = self._running.popleft()
            took = now - max(self._last_end, launched)
            self._shortest[size] = min(took, self._shortest.get(size, took) * _FORGETTING)
        self._last_end = now

    def _seconds(self, size: StepSize) -> float:
        """Seconds that a step of `size` takes at least, or a smaller one if none was seen; 0 if nothing is known."""
        smaller = [known for known in self._shortest if known.decoding == size.decoding and known <= size]
        return self._shortest[max(smaller)] if smaller else 0.0


def clocked(ios: Any) -> StepClock:
    """A clock that notes when the results of each step come out of `ios`, inputs and outputs of overlapping steps."""
    clock = StepClock(lambda: bool(ios.io_pairs[1 - ios.current_pair].d2h_over.query()))
    results = ios.prepare_batch_update

    def timed() -> Any:
        found = results()
        clock.ended()
        return found

    ios.prepare_batch_update = timed
    return clock
