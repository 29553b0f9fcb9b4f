"""Sizes of passes and steps, of drawn prompts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from openai_bls_vllm.scheduling.pass_size import SHORT_PROMPT, SMALLEST_PASS, pass_size, step_tokens


def test_passes_take_the_same_time_whatever_the_model() -> None:
    assert pass_size(15_200_000_000) == 2039
    assert pass_size(7_600_000_000) == 4078
    assert pass_size(140_000_000_000) == SMALLEST_PASS
    assert pass_size(0) > 1 << 40


@given(
    st.lists(st.integers(1, 2 * SHORT_PROMPT), max_size=60),
    st.integers(0, 256),
    st.integers(1, 3000),
    st.integers(1, 8192),
)
def test_a_step_ends_with_a_whole_prompt(waiting: list[int], running: int, size: int, most: int) -> None:
    found = step_tokens(waiting, running, size, most)
    assert 0 < found <= most
    if found == most:
        return
    prompts, taken = found - running, 0
    for at, tokens in enumerate(waiting):
        taken += tokens
        if taken == prompts:
            assert max(waiting[: at + 1]) <= SHORT_PROMPT
            assert size <= prompts < size + SHORT_PROMPT
            assert waiting[at + 1 :]
            return
    raise AssertionError((waiting, found))


@given(st.lists(st.integers(1, SHORT_PROMPT), max_size=60), st.integers(1, 3000))
def test_what_fits_is_read_at_once(waiting: list[int], size: int) -> None:
    fits = sum(waiting[:-1]) < size
    assert (step_tokens(waiting, 0, size, 1 << 40) == 1 << 40) == fits


def test_a_long_prompt_among_the_next_takes_all() -> None:
    assert step_tokens([60, SHORT_PROMPT + 1, 60, 60], 4, 100, 8192) == 8192
    assert step_tokens([60, 60, 60, SHORT_PROMPT + 1], 4, 100, 8192) == 124
    endless = iter(lambda: 60, None)
    assert step_tokens(endless, 4, 100, 8192) == 124
