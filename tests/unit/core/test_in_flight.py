"""Memory in flight by key: never over the limit, never all of it for one of several keys, nothing lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core.keys.in_flight import InFlight

LIMIT = 1200
KEYS = "abcd"


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.integers(1, LIMIT), st.booleans()), max_size=60), st.booleans())
def test_a_key_leaves_as_much_as_it_has(steps: list[tuple[str, int, bool]], several: bool) -> None:
    shares = InFlight(LIMIT, lambda: several)
    taken: dict[str, list[int]] = {key: [] for key in KEYS}
    for key, size, gives_back in steps:
        if gives_back and taken[key]:
            shares.give_back(key, taken[key].pop())
        else:
            before = sum(map(sum, taken.values()))
            if shares.take(key, size):
                taken[key].append(size)
                own, held = sum(taken[key]), before + size
                assert held <= LIMIT
                assert not several or not before or own <= LIMIT - held
            else:
                assert before
        assert shares.held == sum(map(sum, taken.values()))
    for key in KEYS:
        for size in taken[key]:
            shares.give_back(key, size)
    assert (shares.held, shares._of_key) == (0, {})


@pytest.mark.parametrize("others", range(1, 5))
def test_a_key_with_nothing_in_flight_finds_as_much_free_as_any_has(others: int) -> None:
    shares = InFlight(LIMIT, lambda: True)
    for key in KEYS[:others]:
        # However greedy, and whoever comes first.
        while shares.take(key, 1):
            pass
    most = max(shares._of_key.values())
    assert most == LIMIT // 2
    assert shares.take("new", LIMIT // 2 ** (others + 1))


def test_one_key_alone_has_all_of_it() -> None:
    shares = InFlight(LIMIT)
    assert shares.take("", LIMIT // 2)
    assert shares.take("", LIMIT // 2)
    assert not shares.take("", 1)
    assert shares.take("", 1, free=True)
