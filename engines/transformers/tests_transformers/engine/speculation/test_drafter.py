"""Drafts by what a sequence has had before, and by a prediction."""

from __future__ import annotations

import itertools
from collections.abc import Set

import pytest

from openai_bls_transformers.speculation.draft_budget import DraftBudget
from openai_bls_transformers.speculation.drafter import Drafter, SpeculationConfig

CONFIG = SpeculationConfig(num_tokens=8, lookup_min=2, lookup_max=4, max_batch_size=8)


@pytest.fixture(autouse=True)
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts whatever they cost: the steps of so small a model are too short to measure them by."""
    monkeypatch.setattr(DraftBudget, "is_overdrawn", False)


def propose(drafter: Drafter, stop_token_ids: Set[int] = frozenset()) -> list[int]:
    return drafter.propose(drafter.look_up(8), 8, frozenset(stop_token_ids))


def test_drafts_follow_what_is_accepted() -> None:
    drafter = Drafter(CONFIG, [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2])
    assert propose(drafter) == [3, 4, 5, 6]
    drafter.settle(4)
    drafter.observe([3, 4, 5, 6, 7])
    assert propose(drafter, {1}) == [8, 9]
    assert propose(drafter) == [8, 9, 1, 2, 3, 4, 5, 6]
    assert drafter.look_up(3) == [8, 9, 1]
    for accepted, length in ((1, 7), (5, 6), (0, 5), (0, 4)):
        drafter.draft = [0] * (length + (accepted < 7))
        drafter.settle(accepted)
        drafter.observe([1, 2])
        assert len(drafter.look_up(8)) == length
    assert drafter.look_up(0) == []


def test_drafts_that_are_wrong_make_pauses() -> None:
    drafter = Drafter(CONFIG, [1, 2, 3, 1, 2])
    drafts = []
    for count in range(400):
        draft = propose(drafter)
        if draft:
            drafter.settle(0)
            drafts.append(count)
        drafter.observe([1 + count % 2])
    gaps = [after - before for before, after in itertools.pairwise(drafts)]
    assert gaps == [2, 2, 6, 14, 30, 62, 126, 128]  # there is a guess at every other token


def test_guesses_that_can_be_no_draft_make_pauses_too() -> None:
    """A guess keeps steps from overlapping."""
    drafter = Drafter(CONFIG, [1, 2, 3, 1, 2])
    for _ in range(2):
        assert drafter.will_draft
        assert propose(drafter, {3}) == []
    assert not drafter.will_draft
    drafter.observe([1, 2])
    assert drafter.will_draft


def test_a_stop_token_behind_the_room_of_a_draft() -> None:
    """The room may be less than when it was guessed: other sequences have drafts."""
    drafter = Drafter(CONFIG, [1, 2, 3])
    assert drafter.propose([4, 5, 6, 7, 8], 2, {7}) == [4, 5]
    assert drafter.propose([4, 5, 6, 7, 8], 5, {7}) == [4, 5, 6]


def test_a_prediction_is_found_again_after_a_change() -> None:
    text = list(range(100, 160))
    drafter = Drafter(CONFIG, [1], text)
    assert propose(drafter) == text[:4]
    assert drafter.observe([100, 101, 7, 8]) == 2  # for 102 and 103, too soon to say
    assert propose(drafter) == []
    assert drafter.observe([104, 105]) == 0
    assert propose(drafter) == text[6:10]
    assert drafter.observe([106, 107, 7]) == 2  # for 108
    assert propose(drafter) == text[9:13]
    assert drafter.observe([109, 110, 111, 114]) == 3  # two are left out
    assert propose(drafter) == text[15:19]
    assert drafter.observe([115, 116, 117, 7, 8, 9]) == 3  # put in between
    assert propose(drafter) == []
    assert drafter.observe([118, 119]) == 0
    assert propose(drafter) == text[20:24]
    assert drafter.observe(text[20:]) == 40
    assert propose(drafter) == []


def test_a_copy_of_the_prompt_goes_on_behind_a_change() -> None:
    drafter = Drafter(CONFIG, [*range(100, 130), 1, 2, 100, 101])
    assert propose(drafter) == [102, 103, 104, 105]
    drafter.observe([102, 103, 7])
    assert propose(drafter) == [105, 106, 107, 108]
    drafter.observe([105, 106, 107, 110])
    assert propose(drafter) == [111, 112, 113, 114]
    drafter.observe([7])
    assert propose(drafter) == []
    drafter.observe([120, 121])
    assert propose(drafter) == [122, 123, 124, 125]
