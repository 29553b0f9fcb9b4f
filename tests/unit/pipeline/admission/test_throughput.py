from __future__ import annotations

import random

import pytest

from openai_bls.pipeline.admission.throughput import DrainRate, Quantile, ServiceTime, Trend


@pytest.mark.parametrize("share", [0.6, 0.9])
def test_a_quantile_is_found_from_above_and_from_below(share: float) -> None:
    numbers = random.Random(1)
    for first in (0.01, 100.0):
        quantile = Quantile(share)
        quantile.add(first)
        seen = []
        for _ in range(4000):
            quantile.add(numbers.uniform(1, 2))
            seen.append(quantile.value)
        assert sum(seen[2000:]) / 2000 == pytest.approx(1 + share, rel=0.05)


def test_what_was_cut_short_only_says_that_it_is_longer() -> None:
    quantile = Quantile(0.9)
    quantile.add(10)
    quantile.add(1, whole=False)
    assert quantile.value == 10
    quantile.add(20, whole=False)
    assert 10 < quantile.value < 20


def test_a_trend_is_a_line_through_the_points() -> None:
    trend = Trend()
    assert trend.at(5) == 0
    for index in range(1000):
        trend.add(10 + index % 5, 0.01 + 0.002 * (10 + index % 5))
    assert trend.at(20) == pytest.approx(0.05, rel=0.1)
    assert trend.at(6) == pytest.approx(0.022, rel=0.1)
    # Points in one place tell no slope: it may be as steep as can be.
    alike = Trend()
    for _ in range(100):
        alike.add(10, 1.0)
    assert alike.at(15) == pytest.approx(1.5)


def test_standing_still_is_forgotten_as_fast_as_it_was_learned() -> None:
    drain = DrainRate()
    drain.begin(0)
    drain.moved(3600, 100, more=True)
    for second in range(30):
        drain.moved(3601 + second, 100, more=True)
    assert drain.tokens_per_s == pytest.approx(100, rel=0.1)


def test_an_engine_that_answers_nobody_in_time_is_known_to_be_slow() -> None:
    service = ServiceTime()
    for _ in range(20):
        service.add("", 8, 0.1, 1.0, 10, done=True)
    fast = service.most_s("", 10)
    for _ in range(60):
        service.add("", 8, 0.5, 3.0, 4, done=False)
    assert service.most_s("", 10) > 5 * fast
    # Of a key that has asked for nothing yet only the time to the first token is known.
    assert service.most_s("new", 10) < 0.6
