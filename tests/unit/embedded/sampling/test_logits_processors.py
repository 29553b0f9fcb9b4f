"""Logits processors of single sequences, as the host collects them for a step."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core.engine_types import GenerationRequest, Grammar, SamplingParams
from openai_bls.embedded.sampling.logits_processors import (
    ANY,
    HostLogitsProcessors,
    LogitsUpdate,
    Penalties,
    tokens,
)
from openai_bls.engines.grammar_errors import GrammarError
from tests.unit.embedded.engine.test_request_state import Constraint

PROMPT = [5, 6, 5]
VOCAB_SIZE = 70


def asked(**more: Any) -> GenerationRequest:
    return GenerationRequest(request_id=1, prompt_token_ids=PROMPT, **{"max_tokens": 20} | more)


def state(output: Sequence[int] = (), prompt: Sequence[int] = PROMPT, awaited: int = 0) -> Any:
    """A sequence about to choose its next token, the last `awaited` of whose tokens are still on their way."""
    known = list(output)[: len(output) - awaited]
    return SimpleNamespace(
        initial_tokens=list(prompt), generated_tokens=known, position_offset=len(prompt) + len(output)
    )


def collected(processors: HostLogitsProcessors, of: Any, row: int = 2) -> LogitsUpdate:
    update = LogitsUpdate()
    processors.collect(row, of, update)
    return update


@pytest.mark.parametrize(
    "more",
    [
        {"bad_words": ((1,),)},
        {"min_tokens": 1, "stop_token_ids": (9,)},
        {"logprobs": 0},
        {"grammar": Grammar("regex", "a")},
        {"sampling": SamplingParams(logit_bias={1: 1.0})},
        {"sampling": SamplingParams(repetition_penalty=1.1)},
        {"sampling": SamplingParams(presence_penalty=-0.1)},
        {"sampling": SamplingParams(frequency_penalty=0.1)},
    ],
    ids="-".join,
)
def test_who_needs_some(more: dict[str, Any]) -> None:
    assert HostLogitsProcessors.needed(asked(**more))


def test_who_does_not() -> None:
    sampling = SamplingParams(temperature=0.3, top_p=0.5, top_k=3, min_p=0.1, seed=1)
    assert not HostLogitsProcessors.needed(
        asked(sampling=sampling, stop_token_ids=(9,), stop_words=((1,),), prompt_logprobs=1)
    )
    assert not HostLogitsProcessors.needed(asked(min_tokens=3))  # no stop token that would have to wait


def test_bias() -> None:
    update = collected(HostLogitsProcessors(asked(sampling=SamplingParams(logit_bias={4: 2.0, 9: -100.0}))), state())
    ((row, ids, values),) = update.bias
    assert (row, ids.tolist(), values.tolist()) == (2, [4, 9], [2.0, -100.0])
    assert update.changes_logits


def test_stop_tokens_wait_for_min_tokens() -> None:
    processors = HostLogitsProcessors(asked(min_tokens=2, stop_token_ids=(8, 9)))
    found = [collected(processors, state(range(count))).bans for count in range(4)]
    assert found == [[(2, ANY, 8), (2, ANY, 9)]] * 2 + [[]] * 2


@given(
    prompt=st.lists(st.integers(0, 2), min_size=1, max_size=5),
    output=st.lists(st.integers(0, 2), max_size=8),
    words=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple), min_size=1, max_size=4),
    awaited=st.integers(0, 1),
)
def test_bad_words_are_those_that_the_next_token_completes(
    prompt: list[int], output: list[int], words: list[tuple[int, ...]], awaited: int
) -> None:
    request = GenerationRequest(request_id=1, prompt_token_ids=prompt, max_tokens=20, bad_words=tuple(words))
    of = state(output, prompt, min(awaited, len(output)))
    bans = collected(HostLogitsProcessors(request), of).bans
    text = [*prompt, *output]
    forbidden = {banned for _, last, banned in bans if last in (ANY, text[-1])}
    assert forbidden == {
        token for token in range(3) if any(tuple([*text, token][-len(word) :]) == word for word in words)
    }


@given(
    prompt=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    output=st.lists(st.integers(0, 5), max_size=80),
    repetition=st.sampled_from([1.0, 1.5]),
    stops=st.sets(st.integers(0, 80)),
)
def test_penalties_count_all_but_the_last_token(
    prompt: list[int], output: list[int], repetition: float, stops: set[int]
) -> None:
    penalties = Penalties(len(prompt), repetition, 0.5, 0.5)
    of = state(output, prompt)
    for end in sorted(stops):
        if end <= len(output):
            penalties.advance(of, len(prompt) + end)
    penalties.advance(of, len(prompt) + len(output))
    found = dict(zip(penalties.ids.tolist(), penalties.counts.tolist(), strict=True))
    known = set(output) if repetition == 1 else {*prompt, *output}
    assert found == {token: output.count(token) for token in known}


def test_the_last_token_is_an_output_only_after_the_first() -> None:
    processors = HostLogitsProcessors(asked(sampling=SamplingParams(frequency_penalty=0.5)))
    ((row, _, last_count),) = collected(processors, state()).penalties
    assert (row, last_count) == (2, 0.0)  # it is the prompt's
    ((_, penalties, last_count),) = collected(processors, state([1, 1, 2], awaited=1)).penalties
    assert last_count == 1.0
    assert (penalties.ids.tolist(), penalties.counts.tolist()) == ([1], [2.0])


def test_logprobs_name_the_place() -> None:
    processors = HostLogitsProcessors(asked(logprobs=0))
    update = collected(processors, state([1, 2]))
    assert update.logprobs == [(2, len(PROMPT) + 2, processors)]
    assert not update.changes_logits


def test_bitmasks_of_the_grammars_that_go_on() -> None:
    """Asked for late: whose request has ended by then, or whose grammar fails, has none."""
    errors = GrammarError("too complex"), RuntimeError("a bug")
    constraints = [Constraint([1]), *(Constraint([1], ("fill", 0), error) for error in errors), Constraint([1])]
    processors = [HostLogitsProcessors(asked(logprobs=1), constraint) for constraint in constraints]
    update = LogitsUpdate()
    for row, one in enumerate(processors, 2):
        one.collect(row, state(), update)
    assert update.changes_logits
    processors[0].ended = True
    for _ in range(2):
        rows, masks = update.bitmasks(VOCAB_SIZE)
        assert rows == [5]
        assert masks.dtype == np.int32
        assert masks.tolist() == [[-1, -1, -1]]  # three words for 70 tokens
    assert [one.failure for one in processors] == [None, *errors, None]
    assert [row for row, *_ in update.logprobs] == [2, 3, 4, 5]  # the rest of the rows is as always


def test_tokens_across_the_prompts_end() -> None:
    of = state([7, 8, 9])
    everything = [*PROMPT, 7, 8, 9]
    for start in range(7):
        for end in range(start, 7):
            assert tokens(of, start, end) == everything[start:end]
