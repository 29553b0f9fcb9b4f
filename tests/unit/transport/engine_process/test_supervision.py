from __future__ import annotations

import pytest

from openai_bls.transport.engine_process import supervision
from openai_bls.transport.engine_process.supervision import STEADY_S, RestartPolicy


@pytest.fixture(autouse=True)
def quick() -> None:
    """The real delays."""


def test_delays_double_up_to_the_longest() -> None:
    policy = RestartPolicy(None)
    delays = [policy.lost(0.0), *(policy.failed() for _ in range(8))]
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_a_process_that_has_served_begins_again() -> None:
    policy = RestartPolicy(5)
    assert [policy.lost(1.0), policy.lost(1.0), policy.lost(STEADY_S)] == [0.5, 1.0, 0.5]


def test_the_limit_is_of_starts_in_a_row() -> None:
    policy = RestartPolicy(3)
    assert policy.lost(0.0) is not None
    assert policy.failed() is not None
    assert policy.failed() is not None
    # It was ready in between.
    assert policy.lost(0.0) is not None
    assert [policy.failed() is None for _ in range(3)] == [False, False, True]


def test_no_restart_at_all() -> None:
    assert RestartPolicy(0).lost(supervision.STEADY_S) is None
