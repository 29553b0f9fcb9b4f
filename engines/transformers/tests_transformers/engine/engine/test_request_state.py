"""Deltas of a request from the outputs of its steps, with made-up outputs and grammars."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core.engine_types import GenerationRequest, TokenDelta
from openai_bls.engines.capabilities import ENGINE_FAILED
from openai_bls.engines.not_finite import NOT_FINITE
from openai_bls_transformers.engine.request_state import RequestState
from openai_bls_transformers.sampling.logits_processors import HostLogitsProcessors

PROMPT = [7, 8]
STOP = 99


class Constraint:
    """Allows `plan` and nothing else; raises `error` from `place`, a method's name and how many tokens it has."""

    def __init__(self, plan: Sequence[int], place: tuple[str, int] = ("", -1), error: Exception | None = None) -> None:
        self.plan, self.place, self.error = plan, place, error
        self.taken = 0

    def fill(self, mask: Any) -> None:
        self._check("fill")
        mask.fill(-1)

    def accept(self, token_id: int) -> bool:
        self._check("accept")
        if token_id != self.plan[self.taken]:
            return False
        self.taken += 1
        return True

    def look_ahead(self, token_ids: Sequence[int]) -> list[Any]:
        raise AssertionError("nothing is drafted here")

    def forced(self) -> list[int]:
        raise AssertionError("nothing is drafted here")

    @property
    def ended(self) -> bool:
        self._check("ended")
        return self.taken == len(self.plan)

    def _check(self, method: str) -> None:
        if self.error is not None and self.place == (method, self.taken):
            raise self.error


def live(constraint: Constraint | None = None, **more: Any) -> RequestState:
    fields: dict[str, Any] = {"max_tokens": 10, "stop_token_ids": (STOP,)} | more
    found = RequestState("key", GenerationRequest(request_id=3, prompt_token_ids=PROMPT, **fields), "tiny")
    if constraint is not None or HostLogitsProcessors.needed(found.request):
        found.processors = HostLogitsProcessors(found.request, constraint)
    return found


def output(tokens: Sequence[int], **more: Any) -> Any:
    return SimpleNamespace(generated_tokens=list(tokens), error=None, **more)


def run(found: RequestState, *counts: int, tokens: Sequence[int]) -> list[TokenDelta]:
    """Steps after which there are so many of `tokens`, up to the end."""
    deltas = []
    for count in counts:
        found.accept(output(tokens[:count]))
        delta = found.advance(output(tokens[:count]))
        if delta is not None:
            deltas.append(delta)
            if delta.finish_reason is not None:
                break
    return deltas


@given(
    tokens=st.lists(st.integers(1, 3), min_size=1, max_size=12),
    words=st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=4).map(tuple), max_size=3).map(tuple),
    least=st.integers(0, 6),
    cuts=st.lists(st.integers(1, 4), max_size=12),
)
def test_stop_words_however_the_steps_cut_them(
    tokens: list[int], words: tuple[tuple[int, ...], ...], least: int, cuts: list[int]
) -> None:
    found = live(max_tokens=100, min_tokens=least, stop_words=words, stop_token_ids=())
    counts = [min(sum(cuts[: i + 1]), len(tokens)) for i in range(len(cuts))]
    deltas = run(found, *counts, len(tokens), tokens=tokens)
    ends = [
        count
        for count in range(max(least, 1), len(tokens) + 1)
        if any(tuple(tokens[:count][-len(word) :]) == word for word in words)
    ]
    delivered = [token for delta in deltas for token in delta.token_ids]
    assert delivered == (tokens[: ends[0]] if ends else tokens)
    assert deltas[-1].finish_reason == ("stop" if ends else None)
    assert deltas[-1].stop_token_id is None


def test_whose_bitmask_is_needed() -> None:
    constraint = Constraint([4, 5])
    found = live(constraint)
    assert found.accept(output([4])) is constraint
    found.advance(output([4]))
    assert found.accept(output([4])) is constraint  # nothing new
    assert found.accept(output([4, STOP])) is None
    assert constraint.taken == 1
    assert live().accept(output([4])) is None
    assert live(Constraint([4])).accept(SimpleNamespace(generated_tokens=[4], error="CUDA error")) is None
    refused = live(Constraint([4]))
    assert refused.accept(output([5])) is None
    assert refused.accept(output([5])) is None  # the grammar is asked no more


def test_a_token_that_a_grammar_refuses(caplog: pytest.LogCaptureFixture) -> None:
    assert run(live(Constraint([4, 5])), 1, 2, tokens=[4, 6])[-1] == TokenDelta(3, [], "error", error=ENGINE_FAILED)
    assert "refuses token 6" in caplog.text


def test_logprobs_that_are_missing_are_one_requests_error(caplog: pytest.LogCaptureFixture) -> None:
    assert live(logprobs=1).advance(output([1])) == TokenDelta(3, [], "error", error=ENGINE_FAILED)
    assert "KeyError" in caplog.text


def test_logits_that_are_not_finite_are_no_fault_of_the_grammar() -> None:
    """Nor does a grammar see what stands in the place of a token."""
    found = live(Constraint([4, 5, 6]))
    (first, last) = run(found, 1, 2, tokens=[4, NOT_FINITE])
    assert (first.token_ids, first.finish_reason) == ([4], None)
    assert (last.token_ids, last.finish_reason, last.invalid) == ([], "error", False)
    assert last.error is not None
    assert last.error.startswith("The model tiny computes NaN or infinity for this request")
