"""Every way in which TensorRT-LLM cuts up an output comes to the same deltas."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core.engine_types import GenerationRequest, Logprobs, TokenDelta
from openai_bls.engines.capabilities import ENGINE_FAILED
from openai_bls.engines.not_finite import NotFiniteError
from openai_bls_tensorrt_llm.deltas import TIMED_OUT, Cursor, OutputError

END = 90
OTHER_STOP = 91
VOCAB_SIZE = 100


@dataclass
class Entry:
    """As TensorRT-LLM's `Logprob`."""

    logprob: float
    rank: int | None = None


@dataclass
class Snapshot:
    """An output as it is at one time."""

    token_ids: Sequence[int] = ()
    logprobs: Any = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    index: int = 0


def request(max_tokens: int = 50, **more: Any) -> GenerationRequest:
    return GenerationRequest(request_id=7, prompt_token_ids=[1, 2, 3], max_tokens=max_tokens, **more)


def run(cursor: Cursor, snapshots: Sequence[Snapshot]) -> list[TokenDelta]:
    """All deltas, the last snapshot being the end; snapshots after the end are not read."""
    deltas = []
    for number, snapshot in enumerate(snapshots, 1):
        cursor.observe(snapshot)
        delta = cursor.advance(snapshot, finished=number == len(snapshots))
        if delta is not None:
            deltas.append(delta)
            if delta.finish_reason is not None:
                break
    return deltas


def tokens(deltas: Sequence[TokenDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


def own_logprob(place: int, token: int) -> float:
    return -(place * VOCAB_SIZE + token + 1) / 1000


def place_of(place: int, token: int, count: int, form: str) -> Any:
    """The log-probabilities at one place, telling place and token apart."""
    if form == "floats":
        return own_logprob(place, token)
    others = [t for t in range(count + 1) if t != token][:count]
    top = {t: Entry(-place - (rank + 1) / 1e6, rank + 1) for rank, t in enumerate(others)}
    return top | {token: Entry(-1e6 + own_logprob(place, token), count + 1)}


@dataclass
class Quirks:
    """Which of its ways an output shows."""

    includes_end: bool
    names_reason: bool
    logprobs_newest: bool
    logprobs_longer: bool
    finish_alone: bool
    form: str


def snapshots(sampled: list[int], ends_by: int | None, quirks: Quirks, count: int | None, seed: int) -> list[Snapshot]:
    """What TensorRT-LLM shows of `sampled` while it grows.

    Args:
        sampled: the tokens, without an end token.
        ends_by: the end or stop token after them; None if the length ends it.
        quirks: how.
        count: likeliest tokens a place; None for no log-probabilities.
        seed: decides where it is cut.
    """
    rng = random.Random(seed)
    cuts = sorted({rng.randint(0, len(sampled)) for _ in range(rng.randint(0, 6))} | {len(sampled)})
    whole = sampled + ([ends_by] if ends_by is not None else [])
    places = [place_of(i, token, count or 0, quirks.form) for i, token in enumerate(whole)]
    found = []
    previous = 0
    for cut in cuts:
        shown = places[previous:cut] if quirks.logprobs_newest else places[: cut + quirks.logprobs_longer]
        found.append(Snapshot(sampled[:cut], None if count is None else shown))
        previous = cut
    if not quirks.finish_alone and len(found) > 1:
        found.pop()
        previous = len(found[-1].token_ids)
    last = Snapshot(list(sampled), None if count is None else places[previous if quirks.logprobs_newest else 0 :])
    if ends_by is not None and quirks.includes_end:
        last.token_ids = whole
    elif quirks.logprobs_newest and last.logprobs is not None:
        last.logprobs = places[previous : len(sampled)]
    last.finish_reason = "length" if ends_by is None else "stop"
    if ends_by is not None and quirks.names_reason:
        last.stop_reason = ends_by
    return [*found, last]


quirks_of = st.builds(
    Quirks,
    includes_end=st.booleans(),
    names_reason=st.booleans(),
    logprobs_newest=st.booleans(),
    logprobs_longer=st.booleans(),
    finish_alone=st.booleans(),
    form=st.sampled_from(["floats", "mappings"]),
)
plain_tokens = st.lists(st.integers(0, END - 1), max_size=12)


def check_logprobs(deltas: Sequence[TokenDelta], count: int, form: str) -> None:
    """Each token has its own."""
    place = 0
    for delta in deltas:
        assert (delta.logprobs is None) == (not delta.token_ids)
        if delta.logprobs is None:
            continue
        assert len(delta.logprobs.token_logprobs) == len(delta.token_ids)
        for i, token in enumerate(delta.token_ids):
            own = own_logprob(place, token)
            assert delta.logprobs.token_logprobs[i] == (own if form == "floats" else pytest.approx(-1e6 + own))
            values = delta.logprobs.top_logprobs[i]
            assert len(values) == len(delta.logprobs.top_token_ids[i]) == count
            assert values == sorted(values, reverse=True)
            assert [round(-value) for value in values] == [place] * count
            place += 1


@given(plain_tokens, quirks_of, st.sampled_from([None, 0, 3]), st.integers(0, 1 << 30))
def test_the_end_token(sampled: list[int], quirks: Quirks, count: int | None, seed: int) -> None:
    if count:
        quirks.form = "mappings"
    # Where TensorRT-LLM leaves out the end token and its reason it can only have been the end token.
    named = quirks.includes_end or quirks.names_reason
    for end in (END, OTHER_STOP) if named else (END,):
        cursor = Cursor(request(stop_token_ids=(END, OTHER_STOP), logprobs=count), END)
        deltas = run(cursor, snapshots(sampled, end, quirks, count, seed))
        assert tokens(deltas) == sampled
        assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + ["stop"]
        assert deltas[-1].stop_token_id == end
        assert cursor.count == len(sampled)
        if count is not None:
            check_logprobs(deltas, count, quirks.form)


@given(plain_tokens.filter(bool), quirks_of, st.sampled_from([None, 0, 3]), st.integers(0, 1 << 30))
def test_the_length(sampled: list[int], quirks: Quirks, count: int | None, seed: int) -> None:
    if count:
        quirks.form = "mappings"
    cursor = Cursor(request(len(sampled), stop_token_ids=(END,), logprobs=count), END)
    deltas = run(cursor, snapshots(sampled, None, quirks, count, seed))
    assert tokens(deltas) == sampled
    assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + ["length"]
    assert deltas[-1].stop_token_id is None
    assert all(delta.token_ids for delta in deltas)
    if count is not None:
        check_logprobs(deltas, count, quirks.form)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=14),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple), min_size=1, max_size=3),
    st.integers(0, 14),
    quirks_of,
    st.sampled_from([None, 0, 3]),
    st.integers(0, 1 << 30),
)
def test_stop_words(
    sampled: list[int],
    words: list[tuple[int, ...]],
    min_tokens: int,
    quirks: Quirks,
    count: int | None,
    seed: int,
) -> None:
    if count:
        quirks.form = "mappings"
    min_tokens = min(min_tokens, len(sampled))
    ends = [
        end
        for end in range(1, len(sampled) + 1)
        if end >= min_tokens and any(tuple(sampled[max(0, end - len(word)) : end]) == word for word in words)
    ]
    asked = request(len(sampled), stop_words=tuple(words), logprobs=count, min_tokens=min_tokens)
    deltas = run(Cursor(asked, None), snapshots(sampled, None, quirks, count, seed))
    assert tokens(deltas) == sampled[: min(ends, default=len(sampled))]
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish_reason == ("stop" if ends else "length")
    if count is not None:
        check_logprobs(deltas, count, quirks.form)


@given(plain_tokens.filter(bool), st.integers(1, 4), st.integers(0, 1 << 30))
def test_a_list_that_got_shorter(sampled: list[int], trimmed: int, seed: int) -> None:
    """A matched stop sequence is cut off after it was streamed: what was delivered stays."""
    quirks = Quirks(False, False, False, False, True, "floats")
    steps = snapshots(sampled, END, quirks, None, seed)
    steps[-1].token_ids = sampled[: max(0, len(sampled) - trimmed)]
    steps[-1].stop_reason = OTHER_STOP
    deltas = run(Cursor(request(stop_token_ids=(END, OTHER_STOP)), END), steps)
    assert tokens(deltas) == sampled
    assert (deltas[-1].finish_reason, deltas[-1].stop_token_id) == ("stop", OTHER_STOP)
    assert len([delta for delta in deltas if delta.finish_reason]) == 1


def test_tokens_after_the_end_are_not_delivered() -> None:
    """As with speculative decoding, whose steps bring several."""
    assert run(Cursor(request(stop_token_ids=(END,)), END), [Snapshot([5, END, 6, 7]), Snapshot()]) == [
        TokenDelta(7, [5], "stop", END)
    ]
    assert run(Cursor(request(2), None), [Snapshot([5, 6, 7]), Snapshot()]) == [TokenDelta(7, [5, 6], "length")]


def test_a_step_with_nothing_new() -> None:
    cursor = Cursor(request(), END)
    assert cursor.advance(Snapshot(), finished=False) is None
    assert cursor.advance(Snapshot([4]), finished=False) == TokenDelta(7, [4])
    assert cursor.advance(Snapshot([4]), finished=False) is None
    assert cursor.advance(Snapshot([]), finished=False) is None


@pytest.mark.parametrize(
    ("reason", "finish_reason", "error"),
    [
        ("length", "length", None),
        ("timeout", "error", TIMED_OUT),
        ("cancelled", "cancelled", None),
        (None, "cancelled", None),
        ("not_finished", "error", ENGINE_FAILED),
    ],
)
def test_finish_reasons(reason: str | None, finish_reason: str, error: str | None) -> None:
    """That nothing asked for tells: the cache was full, TensorRT-LLM gave up, and so on."""
    (delta,) = run(Cursor(request(stop_token_ids=(END,)), END), [Snapshot([5], finish_reason=reason)])
    assert (delta.token_ids, delta.finish_reason, delta.error) == ([5], finish_reason, error)


def test_a_stop_without_an_end_token() -> None:
    (delta,) = run(Cursor(request(), None), [Snapshot([5], finish_reason="stop")])
    assert (delta.finish_reason, delta.stop_token_id) == ("stop", None)


def test_a_stop_token_before_min_tokens_ends_all_the_same() -> None:
    """It was sampled, so there is nothing more to come."""
    cursor = Cursor(request(stop_token_ids=(END,), min_tokens=5), END)
    assert run(cursor, [Snapshot([5, END], finish_reason="stop")]) == [TokenDelta(7, [5], "stop", END)]


def missing() -> Iterator[Any]:
    yield "of the tokens", request(logprobs=0), Snapshot([4], finish_reason="length")
    yield "of one token", request(logprobs=0), Snapshot([4, 5], [-0.1], "stop")
    yield "of the token itself", request(logprobs=0), Snapshot([4], [{5: Entry(-1)}], "stop")
    yield "likeliest tokens", request(logprobs=1), Snapshot([4], [-0.1], "stop")


@pytest.mark.parametrize(("what", "asked", "snapshot"), [pytest.param(*case, id=case[0]) for case in missing()])
def test_what_was_asked_for_and_is_not_there(what: str, asked: GenerationRequest, snapshot: Snapshot) -> None:
    with pytest.raises(OutputError, match=r"log-prob|likeliest"):
        run(Cursor(asked, END), [snapshot])


@pytest.mark.parametrize("place", [math.nan, {4: Entry(math.nan), 5: Entry(-1)}])
def test_a_log_probability_that_is_no_number(place: Any) -> None:
    with pytest.raises(NotFiniteError):
        run(Cursor(request(logprobs=0), END), [Snapshot([4], [place], "stop")])


@pytest.mark.parametrize(("reason", "finish_reason"), [("cancelled", "cancelled"), ("timeout", "error")])
def test_what_was_cut_off_keeps_the_tokens_that_have_log_probabilities(reason: str, finish_reason: str) -> None:
    (delta,) = run(Cursor(request(logprobs=0), END), [Snapshot([4, 5], [-0.5], reason)])
    assert (delta.token_ids, delta.finish_reason) == ([4], finish_reason)
    assert delta.logprobs == Logprobs([-0.5], [[]], [[]])
