"""Probabilities of labels against all outputs of a small language model, one by one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.api.decisions import labels
from openai_bls.api.decisions.labels import NEVER, Tokens
from openai_bls.api.decisions.reads import Read
from openai_bls.api.decisions.schema import (
    Choice,
    ChoiceAnswer,
    Level,
    Option,
    Predicate,
    PredicateAnswer,
    Score,
    ScoreAnswer,
)

VOCABULARY = range(3)
LENGTH = 3
label = st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=LENGTH).map(tuple)
# From a token that never comes to one that nearly always does.
weights = st.lists(st.sampled_from([0, 1, 3, 1000]), min_size=3, max_size=3).filter(any)
models = st.lists(weights, min_size=1, max_size=7)


def chance(model: list[list[int]], before: Tokens, token: int) -> float:
    """Probability of a token after others."""
    row = model[hash(before) % len(model)]
    return row[token] / sum(row)


def outputs(model: list[list[int]]) -> Iterator[tuple[Tokens, float]]:
    """All outputs of a length, with their probabilities."""
    for output in itertools.product(VOCABULARY, repeat=LENGTH):
        yield output, math.prod(chance(model, output[:at], token) for at, token in enumerate(output))


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(label, min_size=1, max_size=12, unique=True), model=models)
def test_a_label_is_the_longest_that_an_output_begins_with(rows: list[Tokens], model: list[list[int]]) -> None:
    expected = dict.fromkeys(rows, 0.0)
    for output, probability in outputs(model):
        begun = [row for row in rows if output[: len(row)] == row]
        if begun:
            expected[max(begun, key=len)] += probability
    of_last = {
        prefix: math.log(one) if (one := chance(model, prefix[:-1], prefix[-1])) else NEVER
        for row in rows
        for prefix in labels.prefixes(row)
    }
    found = labels.logprobs(rows, of_last)
    assert [math.exp(value) for value in found] == pytest.approx([expected[row] for row in rows], rel=1e-6, abs=1e-9)
    total = sum(expected.values())
    shares = [expected[row] / total if total else 1 / len(rows) for row in rows]
    assert labels.probabilities(found) == pytest.approx(shares, rel=1e-6, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(values=st.lists(st.floats(-2000, 0), min_size=1, max_size=40))
def test_probabilities_are_a_whole_in_the_same_order(values: list[float]) -> None:
    found = labels.probabilities(values)
    assert math.fsum(found) == pytest.approx(1)
    assert found[values.index(max(values))] == max(found)


def test_a_predicate() -> None:
    assert labels.answer(Predicate("x", "n"), [0.25, 0.75]) == PredicateAnswer("n", 0.25)


# What OpenAI has answered, rounded as there.
def test_confidence_of_a_choice() -> None:
    question = Choice("x", [Option("billing"), Option("shipping")])
    for found, confidence in (([0.95, 0.05], 0.9), ([0.5, 0.5], 0), ([0.0, 1.0], 1)):
        answer = labels.answer(question, found)
        assert isinstance(answer, ChoiceAnswer)
        assert answer.confidence == pytest.approx(confidence)


def test_confidence_of_a_score() -> None:
    question = Score("x", [Level("low"), Level("medium"), Level("high")])
    answer = labels.answer(question, [0.0, 0.75, 0.25])
    assert isinstance(answer, ScoreAnswer)
    assert answer.score == 1.25
    assert answer.confidence == pytest.approx(0.63, abs=0.006)
    assert [(one.value, one.label) for one in answer.probabilities] == [(0, "low"), (1, "medium"), (2, "high")]
    even = labels.answer(question, [0.5, 0.0, 0.5])
    assert isinstance(even, ScoreAnswer)
    assert even.confidence == 0


@given(st.lists(label, min_size=1, max_size=8, unique=True))
def test_a_read_has_the_beginnings_of_its_labels_each_once(rows: list[Tokens]) -> None:
    """At least those of the longest: what is refused by that number needs none of them made."""
    steps = Read([1], rows).steps
    assert set(steps) == {row[: end + 1] for row in rows for end in range(len(row))}
    assert len(set(steps)) == len(steps) >= max(map(len, rows))


@given(st.lists(label, min_size=1, max_size=8), st.integers(1, 9))
def test_what_is_read_is_known_before_any_step_is_made(texts: list[Tokens], length: int) -> None:
    read = Read([0] * length, texts)
    assert labels.read_tokens(texts, length) == sum(length + len(step) - 1 for step in read.steps)
