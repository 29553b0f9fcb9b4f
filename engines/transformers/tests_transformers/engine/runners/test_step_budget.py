"""Token budgets of steps with prompts beside sequences that decode."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls_transformers.runners.step_budget import LEAST_PROMPT_TOKENS, StepBudget, StepTimes

TIMES = StepTimes(seconds=[(64 * i, 0.002 + 0.001 * i) for i in range(1, 33)], seconds_per_score=1e-9)
LONGEST = 2048
SAVED = 3
"""Long steps that a new budget has."""
PER_LONG = 120


def budget() -> StepBudget:
    return StepBudget(TIMES, max_seconds=0.010)


def long_prompt(found: StepBudget) -> int:
    """Tokens of the next step beside ten sequences and with a prompt that takes more than 50 ms."""
    return found.tokens(decoding=10, prompts=1, prompt_tokens=5000, past=0, longest=5000)


def spent() -> StepBudget:
    """A budget without long steps."""
    found = budget()
    assert [long_prompt(found) for _ in range(SAVED)] == [LONGEST] * SAVED
    return found


def test_one_prompt_gets_what_fits() -> None:
    assert budget().tokens(decoding=10, prompts=1, prompt_tokens=15_000, past=0, longest=15_000) == 448
    # The keys in the cache take their time as well.
    assert budget().tokens(decoding=10, prompts=1, prompt_tokens=15_000, past=10_000, longest=25_000) == 256


def test_prompts_that_are_soon_done_make_steps_longer() -> None:
    for prompts in (1, 2):
        for tokens in (3000, 5000, 12_000):
            assert spent().tokens(decoding=10, prompts=prompts, prompt_tokens=tokens, past=0, longest=tokens) == 1664
    # What is left of a long prompt is not a short one.
    assert budget().tokens(decoding=10, prompts=1, prompt_tokens=1000, past=14_000, longest=15_000) <= 448


def test_prompts_that_wait_for_each_other_make_steps_longer() -> None:
    # At 2,048 tokens in 34 ms these would wait for more than 0.2 s.
    assert spent().tokens(decoding=10, prompts=2, prompt_tokens=30_000, past=0, longest=15_000) == LONGEST


def test_one_step_in_many_is_long() -> None:
    found = spent()
    assert long_prompt(found) == 1664
    for _ in range(PER_LONG // 2):
        found.count_step()
    assert long_prompt(found) == 1664
    for _ in range(PER_LONG // 2 + 1):
        found.count_step()
    assert [long_prompt(found) for _ in range(2)] == [LONGEST, 1664]


def test_long_steps_are_saved_for_long_prompts() -> None:
    found = budget()
    # A prompt of less than 50 ms, many of them, the rest of a longer one, and one that long steps would not help much.
    for prompts, tokens, past, longest in (
        *((1, 3000, 0, 3000), (30, 9000, 0, 300)),
        *((1, 1000, 4000, 5000), (1, 15_000, 0, 15_000)),
    ):
        assert all(found.tokens(10, prompts, tokens, past, longest) <= 1664 for _ in range(SAVED + 1))
    assert [long_prompt(found) for _ in range(SAVED + 1)] == [LONGEST] * SAVED + [1664]


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 12_000)), min_size=1, max_size=400))
def test_the_99th_percentile_of_step_times_is_within_three_times_the_limit(steps: list[tuple[int, int]]) -> None:
    found, long_steps = budget(), 0
    for prompts, prompt_tokens in steps:
        found.count_step()
        long_steps += found.tokens(8, prompts, prompt_tokens, 0, prompt_tokens) > 1664
    assert long_steps <= SAVED + len(steps) / PER_LONG


def test_a_step_takes_in_as_many_tokens_per_second_as_can_be() -> None:
    times = StepTimes([(640, 0.014), (768, 0.0165), (896, 0.021), (1024, 0.022), (1280, 0.030)], seconds_per_score=0.0)
    found = StepBudget(times, max_seconds=0.007)
    assert found.tokens(decoding=8, prompts=1, prompt_tokens=2000, past=0, longest=2000) == 768
    # Rather one step of a poor size than two.
    assert found.tokens(decoding=8, prompts=1, prompt_tokens=850, past=0, longest=850) == 896
    assert found.tokens(decoding=8, prompts=1, prompt_tokens=100, past=0, longest=100) == 640
    assert (
        StepBudget(times, max_seconds=0.008).tokens(decoding=8, prompts=1, prompt_tokens=2000, past=0, longest=2000)
        == 1024
    )


@given(st.integers(1, 4000), st.integers(1, 300), st.integers(1, 10**6), st.integers(0, 10**6))
def test_every_step_takes_in_a_part_of_a_prompt(decoding: int, prompts: int, prompt_tokens: int, past: int) -> None:
    assert budget().tokens(decoding, prompts, prompt_tokens, past, prompt_tokens) >= decoding + LEAST_PROMPT_TOKENS


@pytest.mark.parametrize("past", [0, 5000])
def test_more_context_never_makes_a_step_larger(past: int) -> None:
    sizes = [budget().tokens(8, 1, 20_000, past + more, 20_000) for more in range(0, 60_000, 2000)]
    assert sizes == sorted(sizes, reverse=True)


def test_a_prompt_is_overtaken_by_its_own_length() -> None:
    second = 2048 / 0.034  # tokens that take a second
    assert budget().overtaken(1000, 1000) == pytest.approx(3 * 1000 / second)
    # While prompts wait for more than 0.2 s, long ones let most others pass, but not for ever.
    assert budget().overtaken(1000, 20_000) == pytest.approx(300 * 1000 / second)
    assert budget().overtaken(10_000, 20_000) == 10.0
