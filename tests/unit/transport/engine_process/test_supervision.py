from __future__ import annotations

import pytest

from openai_bls.transport.engine_process.supervision import STEADY_S, RestartPolicy


@pytest.fixture(autouse=True)
def quick() -> None:
    """The real delays."""


def test_delays_double_up_to_the_longest_and_begin_again_after_a_steady_time() -> None:
    policy = RestartPolicy(None)
    delays = [policy.lost(0.0), *(policy.failed() for _ in range(8)), policy.lost(STEADY_S)]
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 0.5]


def test_the_limit_is_of_starts_in_a_row() -> None:
    policy = RestartPolicy(3)
    for starts in ("ff", "fff"):
        assert policy.lost(0.0) is not None
        given_up = [policy.failed() is None for _ in starts]
        assert given_up == [False, False, True][: len(starts)]
    assert RestartPolicy(0).lost(STEADY_S) is None
