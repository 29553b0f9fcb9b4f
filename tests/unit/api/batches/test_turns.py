"""Turns by hypothesis: shares of keys and of batches, nothing starves, and what is removed has no turn."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.api.batches.turns import Rounds, Turns

WEIGHTS = {"a": 1.0, "b": 2.0, "c": 0.25, "d": 7.5}
KEYS = st.sampled_from(sorted(WEIGHTS))
OWNERS = st.lists(KEYS, min_size=1, max_size=12).map(lambda keys: {f"{key}{at}": key for at, key in enumerate(keys)})


def taken(turns: Turns) -> str:
    batch_id = turns.take()
    assert batch_id is not None
    return batch_id


def filled(turns: Turns, owners: dict[str, str]) -> Turns:
    for batch_id, key in owners.items():
        turns.add(batch_id, key)
    return turns


@given(OWNERS, st.integers(1, 20), st.data())
def test_a_turn_is_that_of_the_key_with_the_fewest_places_for_its_weight(
    owners: dict[str, str], most: int, data: st.DataObject
) -> None:
    """And, of that key, of the batch with the fewest; of equal ones the last of which was the longest time ago."""
    turns = filled(Turns(most, WEIGHTS.__getitem__), owners)
    running: list[str] = []
    last_turn: Counter[str] = Counter()
    for turn in range(1, 40):
        if len(running) == most:
            assert turns.take() is None
        if len(running) == most or (running and data.draw(st.booleans())):
            turns.give_back(running.pop(data.draw(st.integers(0, len(running) - 1))))
            continue
        of_key, of_batch = Counter(owners[batch_id] for batch_id in running), Counter(running)
        batch_id = taken(turns)
        key = owners[batch_id]
        ranks = {other: (of_key[other] / WEIGHTS[other], last_turn[other]) for other in owners.values()}
        assert ranks[key] == min(ranks.values())
        ranks = {other: (of_batch[other], last_turn[other]) for other, owner in owners.items() if owner == key}
        assert ranks[batch_id] == min(ranks.values())
        running.append(batch_id)
        last_turn[key] = last_turn[batch_id] = turn
        assert turns.used == len(running)


@given(OWNERS, st.integers(1, 8))
def test_nothing_starves(owners: dict[str, str], most: int) -> None:
    """Where the oldest request ends first, each batch has a turn in as many turns as its share says."""
    turns = filled(Turns(most, WEIGHTS.__getitem__), owners)
    running: list[str] = []
    seen: list[str] = []
    batches = Counter(owners.values())
    bound = most + len(batches) * max(batches.values()) * int(max(WEIGHTS.values()) / min(WEIGHTS.values()))
    for _ in range(2 * bound):
        if len(running) == most:
            turns.give_back(running.pop(0))
        running.append(taken(turns))
        seen.append(running[-1])
    assert set(seen[:bound]) == set(seen[bound:]) == set(owners)


@given(st.integers(1, 30), st.integers(1, 8))
def test_newcomers_do_not_hold_up_one_that_waits(others: int, most: int) -> None:
    """A new batch of a new key at each turn: whoever came before them comes first."""
    turns = Turns(most)
    running: list[str] = []
    for number in range(others):
        turns.add(f"before {number}", f"key {number}")
    turns.add("waits", "key")
    for number in range(others + most):
        turns.add(f"new {number}", f"new key {number}")
        if len(running) == most:
            turns.remove(running.pop(0))
        running.append(taken(turns))
        if running[-1] == "waits":
            return
    pytest.fail("it has had no turn")


@given(OWNERS, st.integers(1, 8), st.data())
def test_a_batch_that_is_paused_or_removed_has_no_turn(owners: dict[str, str], most: int, data: st.DataObject) -> None:
    turns = filled(Turns(most), owners)
    for _ in range(data.draw(st.integers(0, most))):
        taken(turns)
    gone = data.draw(st.sampled_from(sorted(owners)))
    pause = data.draw(st.booleans())
    (turns.pause if pause else turns.remove)(gone)
    assert (gone in turns) == pause
    assert len(turns) == len(owners) - (not pause)
    while (batch_id := turns.take()) is not None:
        assert batch_id != gone
    # What it had is free again, or still counts.
    assert turns.used == most or len(owners) == 1
    if pause:
        turns.add(gone, owners[gone])
        for batch_id in set(owners) - {gone}:
            turns.remove(batch_id)
        assert len(turns) == 1
        assert turns.used == most or turns.take() == gone
    for batch_id in owners:
        turns.remove(batch_id)
    assert (len(turns), turns.used, turns.take()) == (0, 0, None)


@given(OWNERS, st.integers(1, 20))
def test_a_batch_that_may_have_one_place_has_one(owners: dict[str, str], most: int) -> None:
    turns = filled(Turns(most, once=True), owners)
    taken_now = []
    while (batch_id := turns.take()) is not None:
        taken_now.append(batch_id)
        turns.add(batch_id, owners[batch_id])
    assert len(set(taken_now)) == len(taken_now) == min(most, len(owners))


@given(OWNERS, st.integers(1, 20), st.integers(0, 3))
def test_a_key_has_no_more_places_than_its_bound(owners: dict[str, str], most: int, bound: int) -> None:
    turns = filled(Turns(most, bound=lambda key: bound if key == "a" else most), owners)
    while turns.take() is not None:
        pass
    assert turns.used_by("a") <= bound
    assert turns.used == (min(most, bound) if set(owners.values()) == {"a"} else most)


def test_a_key_without_an_open_batch_is_not_kept_waiting() -> None:
    rounds = Rounds(4, requests=3)
    filled(rounds, {f"a{at}": "a" for at in range(6)})
    while (batch_id := rounds.take()) is not None:
        rounds.count(batch_id)
    # Its own wait for the end of a round.
    assert rounds.leaver(lambda batch_id: True) is None
    rounds.add("b0", "b")
    leaver = rounds.leaver(lambda batch_id: batch_id == "a2")
    assert leaver == "a2"
    rounds.remove(leaver)
    rounds.add(leaver, "a")
    assert rounds.take() == "b0"
    for _ in range(3):
        rounds.count("a1")
    assert rounds.leaver(lambda batch_id: batch_id == "a0") == "a1"
    rounds.remove("a1")
    # The first of those that have not been open yet.
    assert rounds.take() == "a4"
    # Keys with a place each have theirs by rounds, too.
    few = Rounds(2, requests=1)
    filled(few, {"a": "a", "b": "b", "c": "c"})
    assert (few.take(), few.take(), few.leaver(lambda batch_id: True)) == ("a", "b", None)
    few.count("b")
    assert few.leaver(lambda batch_id: True) == "b"


@given(OWNERS, st.integers(1, 4), st.integers(1, 3))
def test_every_batch_has_its_round(owners: dict[str, str], most: int, requests: int) -> None:
    rounds = Rounds(most, requests)
    filled(rounds, owners)
    opened: list[str] = []
    begun: Counter[str] = Counter()
    while set(opened) != set(owners):
        while (batch_id := rounds.take()) is not None:
            opened.append(batch_id)
            begun[batch_id] = 0
        assert len(begun) <= most
        assert len(opened) <= 3 * len(owners), "some have many rounds and others none"
        for batch_id in begun:
            begun[batch_id] += 1
            rounds.count(batch_id)
        leaver = rounds.leaver(lambda batch_id: True)
        if leaver is not None:
            del begun[leaver]
            rounds.remove(leaver)
            rounds.add(leaver, owners[leaver])
