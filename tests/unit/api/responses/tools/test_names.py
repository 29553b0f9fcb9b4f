"""Flat names: of any tools no two are the same."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from openai_bls.api.responses.tools.names import MAX_LENGTH, Key, flat_name, flat_names

# Names that are easily confused.
NAMES = st.text("a_", min_size=1, max_size=6) | st.text("abc_.-", min_size=1, max_size=128)
KEYS: st.SearchStrategy[list[Key]] = st.lists(st.tuples(st.none() | NAMES, NAMES), max_size=12)


@given(KEYS)
def test_they_tell_all_tools_apart(keys: list[Key]) -> None:
    names = flat_names(keys)
    assert set(names) == set(keys)
    assert len(set(names.values())) == len(names)
    assert all(1 <= len(name) <= MAX_LENGTH for name in names.values())
    assert all(names[key] == key[1] for key in keys if key[0] is None)


@given(KEYS, st.randoms())
def test_their_order_changes_nothing(keys: list[Key], random: Random) -> None:
    shuffled = list(keys)
    random.shuffle(shuffled)
    assert flat_names(shuffled) == flat_names(keys)


@given(NAMES, NAMES)
def test_one_alone_keeps_its_name(namespace: str, name: str) -> None:
    key = (namespace, name)
    flat = flat_name(key)
    assert flat_names([key]) == {key: flat}
    assert (flat == f"{namespace}__{name}") == (len(namespace) + len(name) + 2 <= MAX_LENGTH)


def test_those_that_would_be_the_same_end_in_a_digest() -> None:
    names = flat_names([("a", "b__c"), ("a__b", "c"), ("a", "d"), (None, "e")])
    assert names[("a", "d")] == "a__d"
    first, second = names[("a", "b__c")], names[("a__b", "c")]
    assert first.startswith("a__b__c_")
    assert second.startswith("a__b__c_")
