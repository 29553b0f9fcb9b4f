"""Requests of the mixed load: the same for the same seed, and none of them in the prefix cache."""

from __future__ import annotations

from benchmarks_transformers.mixed_load import arrivals


def test_requests_are_the_same_for_the_same_seed() -> None:
    assert arrivals(20, 2, seed=3) == arrivals(20, 2, seed=3)
    assert arrivals(20, 2, seed=3) != arrivals(20, 2, seed=4)


def test_rates_share_no_prompt() -> None:
    few, many = (
        {tuple(arrival.request.prompt_token_ids[:32]) for arrival in arrivals(rate, 2, seed=3)} for rate in (20, 40)
    )
    assert len(few) > 20
    assert not few & many
