"""Clock of overlapping steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls_transformers.runners.step_clock import StepClock


class Device:
    """Time, and a device that takes one step after the other."""

    def __init__(self) -> None:
        self.now = 0.0
        self.free_at = 0.0
        self.idle = 0.0
        self.waits: list[float] = []
        self.ends: list[float] = []
        self.clock = StepClock(lambda: self.now >= self.free_at, lambda: self.now, self.sleep)

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds

    def step(self, tokens: int, seconds: float, preparing: float = 0.001, *, decoding: bool = True) -> None:
        """One turn of the loop: a step is launched, then the results of the one before it are taken in."""
        before = self.now
        self.clock.wait()
        self.waits.append(self.now - before)
        self.now += preparing
        self.clock.launched(decoding, tokens)
        if self.ends:
            self.idle += max(0.0, self.now - self.free_at)
        self.free_at = max(self.free_at, self.now) + seconds
        self.ends.append(self.free_at)
        if len(self.ends) > 1:
            self.now = max(self.now, self.ends[-2])
            self.clock.ended()


def test_a_step_is_prepared_shortly_before_the_one_that_runs_ends() -> None:
    device = Device()
    for _ in range(20):
        device.step(64, 0.010)
    # 10 ms less the lead of 2 ms and the preparation of 1 ms.
    assert device.waits[-5:] == pytest.approx([0.007] * 5)
    assert device.idle == 0


def test_a_larger_step_takes_at_least_as_long_as_a_smaller_one() -> None:
    device = Device()
    for _ in range(4):
        device.step(64, 0.010)
    device.step(1024, 0.025)
    device.step(1024, 0.025)  # prepared while the first large one runs
    assert device.waits[-1] == pytest.approx(0.007)
    device.step(16, 0.005)
    device.step(16, 0.005)  # while one runs that is smaller than any that was seen
    assert device.waits[-1] == 0


def test_steps_with_prompts_are_known_by_themselves() -> None:
    device = Device()
    for _ in range(4):
        device.step(64, 0.010)
    device.step(64, 0.015, decoding=False)
    device.step(64, 0.010)
    assert device.waits[-1] == 0


def test_shorter_steps_are_believed_at_once_and_longer_ones_slowly() -> None:
    device = Device()
    for _ in range(4):
        device.step(64, 0.010)
    for _ in range(3):
        device.step(64, 0.020)
    assert device.waits[-1] < 0.010
    for _ in range(40):
        device.step(64, 0.020)
    assert device.waits[-1] == pytest.approx(0.017)
    assert device.idle == 0
    for _ in range(5):
        device.step(64, 0.005)
    assert device.waits[-1] == pytest.approx(0.002)
    assert device.idle < 0.002


def test_a_long_preparation_starts_earlier() -> None:
    device = Device()
    for _ in range(10):
        device.step(64, 0.020, preparing=0.010)
    assert device.waits[-1] == pytest.approx(0.008)
    assert device.idle == 0


@given(st.lists(st.tuples(st.integers(1, 2048), st.booleans()), max_size=60), st.floats(0.0, 0.0015))
def test_the_device_never_waits(steps: list[tuple[int, bool]], preparing: float) -> None:
    """Where a size always takes the same time, and a larger one longer."""
    device = Device()
    device.step(1, 0.004, 0.0015)
    for tokens, decoding in steps:
        device.step(tokens, 0.004 + tokens // 64 * 0.0005, preparing, decoding=decoding)
    assert device.idle == 0
