"""Lookup of n-grams, held against a search through all of the sequence."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from openai_bls_transformers.speculation.ngram_lookup import NgramLookup

TOKENS = st.lists(st.integers(0, 3), max_size=60)


def naive(tokens: Sequence[int], tail: Sequence[int], shortest: int, longest: int) -> int | None:
    for length in range(min(longest, len(tail)), shortest - 1, -1):
        for end in range(len(tokens) - 1, length - 1, -1):
            if list(tokens[end - length : end]) == list(tail[-length:]):
                return end
    return None


@given(st.lists(TOKENS, max_size=6), TOKENS, st.integers(1, 3), st.integers(0, 3))
def test_the_latest_occurrence_of_the_longest_ngram(
    pieces: list[list[int]], other: list[int], shortest: int, more: int
) -> None:
    lookup = NgramLookup(shortest, shortest + more)
    tokens: list[int] = []
    for piece in pieces:
        lookup.extend(piece)
        tokens += piece
        assert lookup.tokens == tokens
        for tail in (tokens, other):
            assert lookup.find(tail) == naive(tokens, tail, shortest, shortest + more)


@given(TOKENS, TOKENS, st.integers(1, 3), st.integers(0, 60))
def test_the_nearest_occurrence_of_the_shortest_ngram(
    tokens: list[int], tail: list[int], length: int, start: int
) -> None:
    ends = [end for end in range(max(start, length), len(tokens)) if tokens[end - length : end] == tail[-length:]]
    wanted = ends[0] if ends else None
    assert NgramLookup(length, length + 2, tokens).nearest(tail, start) == wanted


@given(TOKENS.filter(bool), st.data())
def test_a_continuation_repeats_what_it_ends_with(tokens: list[int], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(tokens) - 1))
    count = data.draw(st.integers(0, 30))
    wanted = tokens[start:]
    while len(wanted) < count:
        wanted = wanted + tokens[start:]
    assert NgramLookup(1, 1, tokens).continuation(start, count) == wanted[:count]
