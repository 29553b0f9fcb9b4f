"""Calls in processes of their own."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator

import pytest

from benchmarks.support.children import attempt, in_child


def counting(last: int, then: str) -> Iterator[int]:
    """Counts up to `last`, then fails or does not end."""
    yield from range(last + 1)
    if then == "wait":
        time.sleep(60)
    elif then:
        raise ValueError(then)


def test_results() -> None:
    assert in_child(60, math.gcd, 12, 18) == 6
    assert in_child(60, os.getenv, "CUDA_VISIBLE_DEVICES", gpus="1,3") == "1,3"


def test_failures() -> None:
    with pytest.raises(RuntimeError, match="TypeError"):
        in_child(60, math.gcd, "x")
    with pytest.raises(TimeoutError):
        in_child(0.1, time.sleep, 60)
    with pytest.raises(RuntimeError, match="died"):
        in_child(60, os.abort)


def test_what_came_before_a_failure_is_kept() -> None:
    assert attempt(60, divmod, 7, 2) == ((3, 1), "")
    assert attempt(60, counting, 2, "enough") == (2, "ValueError: enough")
    assert attempt(0.1, time.sleep, 60) == (None, "no end after 0 s")
