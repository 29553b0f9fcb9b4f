from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core.errors import RateLimitError
from openai_bls.core.keys.key_limits import NO_LIMITS, KeyLimits
from openai_bls.pipeline.admission.key_budgets import Bucket, KeyBudgets, duration


class Bench:
    def __init__(self, limits: KeyLimits) -> None:
        self.now = 1000.0
        self.limits = {"k": limits}
        self.budgets = KeyBudgets(lambda key: self.limits.get(key, NO_LIMITS), lambda: self.now)

    def refusal(self, key: str = "k", tokens: int = 0, prompt: int = 0) -> RateLimitError:
        with pytest.raises(RateLimitError) as caught:
            self.budgets.enter(key).take_tokens(tokens, prompt)
        return caught.value


def test_keys_without_limits_have_none() -> None:
    bench = Bench(NO_LIMITS)
    for _ in range(1000):
        lease = bench.budgets.enter("k")
        lease.take_tokens(10**9, 10**9)
    lease.end(10**9)
    assert bench.budgets.headers("k") == {}


def test_requests_at_once() -> None:
    bench = Bench(KeyLimits(max_concurrent_requests=2))
    first, second = bench.budgets.enter("k"), bench.budgets.enter("k")
    error = bench.refusal()
    assert (error.reason, error.type, error.retry_after_s) == ("concurrent_requests", "requests", 1)
    bench.now += 30
    first.end(0)
    first.end(0)
    third = bench.budgets.enter("k")
    # As long as requests take, by those that there may be.
    assert bench.refusal().retry_after_s == 15
    assert bench.budgets.enter("other")
    second.end(0)
    third.end(0)


def test_requests_per_minute() -> None:
    bench = Bench(KeyLimits(requests_per_minute=6))
    for left in range(5, -1, -1):
        bench.budgets.enter("k").end(0)
        assert bench.budgets.headers("k")["x-ratelimit-remaining-requests"] == str(left)
    error = bench.refusal()
    assert (error.reason, error.type, error.headers["Retry-After"]) == ("requests_per_minute", "requests", "10")
    assert bench.budgets.headers("k") == {
        "x-ratelimit-limit-requests": "6",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1m0s",
    }
    bench.now += 10
    bench.budgets.enter("k")
    assert bench.refusal().retry_after_s == pytest.approx(10)


def test_tokens_per_minute() -> None:
    bench = Bench(KeyLimits(tokens_per_minute=600))
    lease = bench.budgets.enter("k")
    lease.take_tokens(400, 300)
    error = bench.refusal(tokens=300, prompt=100)
    assert (error.reason, error.type, error.retry_after_s) == ("tokens_per_minute", "tokens", 10)
    # It has used fewer than it was expected to.
    lease.end(310)
    other = bench.budgets.enter("k")
    other.take_tokens(290, 100)
    # And another one more, so that nothing goes before that is paid.
    other.end(350)
    assert bench.refusal().retry_after_s == 6
    bench.now += 6
    bench.budgets.enter("k")
    # It has been cut off before it had its tokens.
    bench.now += 60
    bench.budgets.enter("k").end(0)
    assert bench.budgets.headers("k")["x-ratelimit-remaining-tokens"] == "600"


def test_a_prompt_of_more_than_a_minutes_tokens_is_refused_for_good() -> None:
    bench = Bench(KeyLimits(tokens_per_minute=600))
    error = bench.refusal(tokens=700, prompt=601)
    assert (error.reason, error.type, error.headers) == ("tokens_per_minute", "tokens", {})
    # An answer that may be that long is none.
    bench.budgets.enter("k").take_tokens(700, 600)


def test_new_limits_count_at_once_and_forgive_nothing() -> None:
    bench = Bench(KeyLimits(requests_per_minute=4, max_concurrent_requests=9))
    for _ in range(4):
        bench.budgets.enter("k").end(0)
    bench.refusal()
    bench.limits["k"] = KeyLimits(requests_per_minute=6)
    bench.budgets.enter("k")
    bench.budgets.enter("k")
    bench.refusal()
    bench.limits["k"] = KeyLimits()
    bench.budgets.enter("k")
    assert bench.budgets.headers("k") == {}


@given(st.integers(1, 10_000), st.lists(st.tuples(st.floats(0, 90), st.floats(0, 20_000)), max_size=40))
def test_a_bucket_gives_no_more_than_its_rate(per_minute: int, steps: list[tuple[float, float]]) -> None:
    now = 0.0
    bucket = Bucket(per_minute, now)
    taken = 0.0
    for passed, wanted in steps:
        now += passed
        if not bucket.seconds_until(wanted, now):
            bucket.take(wanted, now)
            taken += wanted
        assert bucket.level(now) <= per_minute
        assert taken <= per_minute * (1 + now / 60) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.1195, "120ms"), (0.9999, "1s"), (8.64, "8.64s"), (20, "20s"), (60, "1m0s"), (359.5, "6m0s")],
)
def test_durations_are_as_openais(seconds: float, text: str) -> None:
    assert duration(seconds) == text
