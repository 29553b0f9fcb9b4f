"""Token budgets of steps with prompts beside sequences that decode."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls_transformers.runners.step_budget import LEAST_PROMPT_TOKENS, StepBudget, StepTimes

TIMES = StepTimes(seconds=[(64 * i, 0.002 + 0.001 * i) for i in range(1, 33)], seconds_per_score=1e-9)
BUDGET = StepBudget(TIMES, max_seconds=0.010)


def test_one_prompt_gets_what_fits() -> None:
    assert BUDGET.tokens(decoding=10, prompts=1, prompt_tokens=15_000, past=0) == 448
    # The keys in the cache take their time as well.
    assert BUDGET.tokens(decoding=10, prompts=1, prompt_tokens=15_000, past=10_000) == 256


def test_a_prompt_that_is_soon_done_makes_steps_longer() -> None:
    assert BUDGET.tokens(decoding=10, prompts=1, prompt_tokens=3000, past=0) == 1664
    assert BUDGET.tokens(decoding=10, prompts=1, prompt_tokens=5000, past=0) == 1088
    # What is left of a long prompt is not a short one.
    assert BUDGET.tokens(decoding=10, prompts=1, prompt_tokens=1000, past=14_000) <= 448


def test_prompts_that_wait_for_each_other_make_steps_longer() -> None:
    assert BUDGET.tokens(decoding=10, prompts=2, prompt_tokens=5000, past=0) == 1664
    # At 2,048 tokens in 34 ms these would wait for more than 0.2 s.
    assert BUDGET.tokens(decoding=10, prompts=2, prompt_tokens=30_000, past=0) == 2048


@given(st.integers(1, 4000), st.integers(1, 300), st.integers(1, 10**6), st.integers(0, 10**6))
def test_every_step_takes_in_a_part_of_a_prompt(decoding: int, prompts: int, prompt_tokens: int, past: int) -> None:
    assert BUDGET.tokens(decoding, prompts, prompt_tokens, past) >= decoding + LEAST_PROMPT_TOKENS


@pytest.mark.parametrize("past", [0, 5000])
def test_more_context_never_makes_a_step_larger(past: int) -> None:
    sizes = [BUDGET.tokens(8, 1, 20_000, past + more) for more in range(0, 60_000, 2000)]
    assert sizes == sorted(sizes, reverse=True)


def test_a_prompt_is_overtaken_by_its_own_length() -> None:
    second = 2048 / 0.034  # tokens that take a second
    assert BUDGET.overtaken(1000, 1000) == pytest.approx(3 * 1000 / second)
    # While prompts wait for more than 0.2 s, long ones let most others pass, but not for ever.
    assert BUDGET.overtaken(1000, 20_000) == pytest.approx(300 * 1000 / second)
    assert BUDGET.overtaken(10_000, 20_000) == 10.0
