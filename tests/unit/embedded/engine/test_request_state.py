"""Deltas of a request from the outputs of its steps, with made-up outputs and grammars."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core.engine_types import GenerationRequest, Logprobs, TokenDelta
from openai_bls.embedded.engine.request_state import RequestState
from openai_bls.embedded.sampling.logits_processors import HostLogitsProcessors
from openai_bls.engines.capabilities import ENGINE_FAILED
from openai_bls.engines.grammar_errors import GrammarError

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
    found = RequestState("key", GenerationRequest(request_id=3, prompt_token_ids=PROMPT, **fields))
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


def test_tokens_come_once() -> None:
    found = live()
    assert run(found, 1, 1, 3, tokens=[1, 2, 3]) == [TokenDelta(3, [1]), TokenDelta(3, [2, 3])]
    assert found.cursor == 3


def test_the_end_by_length() -> None:
    assert run(live(max_tokens=2), 1, 2, tokens=[1, 2]) == [TokenDelta(3, [1]), TokenDelta(3, [2], "length")]


def test_a_stop_token_is_not_delivered() -> None:
    assert run(live(), 1, 3, tokens=[1, 2, STOP])[-1] == TokenDelta(3, [2], "stop", STOP)
    assert run(live(max_tokens=1), 1, tokens=[STOP]) == [TokenDelta(3, [], "stop", STOP)]


def test_a_batcher_that_fails_a_sequence() -> None:
    failed = SimpleNamespace(generated_tokens=[1], error="CUDA error: an illegal memory access")
    assert live().advance(failed) == TokenDelta(3, [], "error", error=ENGINE_FAILED)


def test_only_the_first_delta_tells_of_the_prompt() -> None:
    found = live()
    found.prompt_logprobs = Logprobs([-1.0], [[]], [[]])
    first, second = found.advance(output([1], cached_tokens=5)), found.advance(output([1, 2], cached_tokens=5))
    assert first == TokenDelta(3, [1], prompt_logprobs=found.prompt_logprobs, cached_tokens=5)
    assert second == TokenDelta(3, [2])


def test_a_request_for_which_nothing_is_sampled() -> None:
    assert live().end("length") == TokenDelta(3, [], "length")


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


def test_the_end_of_a_grammar() -> None:
    found = live(Constraint([4, 5]))
    assert run(found, 1, 2, tokens=[4, 5]) == [TokenDelta(3, [4]), TokenDelta(3, [5], "stop")]
    assert found.processors is not None
    assert found.processors.ended
    # A stop token is not the grammar's.
    assert run(live(Constraint([4, 5])), 1, 2, tokens=[4, STOP])[-1] == TokenDelta(3, [], "stop", STOP)


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


@pytest.mark.parametrize("place", [("accept", 1), ("ended", 1), ("ended", 2)])
def test_a_grammar_that_raises(place: tuple[str, int], caplog: pytest.LogCaptureFixture) -> None:
    beyond = run(live(Constraint([4, 5, 6], place, GrammarError("too complex"))), 1, 2, 3, tokens=[4, 5, 6])
    assert beyond[-1] == TokenDelta(3, [], "error", error="too complex", invalid=True)
    assert not caplog.records
    broken = run(live(Constraint([4, 5, 6], place, RuntimeError("a bug"))), 1, 2, 3, tokens=[4, 5, 6])
    assert broken[-1] == TokenDelta(3, [], "error", error=ENGINE_FAILED)
    assert "a bug" in caplog.text
    assert [delta.finish_reason for delta in broken[:-1]] == [None] * (len(broken) - 1)


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (GrammarError("too complex"), TokenDelta(3, [], "error", error="too complex", invalid=True)),
        (RuntimeError("a bug"), TokenDelta(3, [], "error", error=ENGINE_FAILED)),
    ],
)
def test_a_grammar_that_could_not_say_what_may_follow(error: Exception, wanted: TokenDelta) -> None:
    found = live(Constraint([4, 5, 6]))
    assert found.advance(output([4])) == TokenDelta(3, [4])
    assert found.processors is not None
    found.processors.failure = error
    assert found.advance(output([4, 5])) == wanted


def test_logprobs_of_what_is_delivered() -> None:
    found = live(logprobs=1)
    assert found.processors is not None
    step = SimpleNamespace(row=lambda index, count: (-float(index), [index] * count, [-0.5] * count))
    found.processors.results = {len(PROMPT) + i: (step, i) for i in range(3)}
    first = found.advance(output([1, 2]))
    assert first == TokenDelta(3, [1, 2], logprobs=Logprobs([0.0, -1.0], [[0], [1]], [[-0.5], [-0.5]]))
    assert found.advance(output([1, 2, STOP])) == TokenDelta(3, [], "stop", STOP)
    assert not found.processors.results


def test_logprobs_that_are_missing_are_one_requests_error(caplog: pytest.LogCaptureFixture) -> None:
    assert live(logprobs=1).advance(output([1])) == TokenDelta(3, [], "error", error=ENGINE_FAILED)
    assert "KeyError" in caplog.text
