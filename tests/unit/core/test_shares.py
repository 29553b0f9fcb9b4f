"""Shares of API keys in a store, against a plain model of them."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core.keys.shares import Shares, room_beside

MAX_ENTRIES = 6
MAX_BYTES = 100

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(["a", "b", "c"]), st.integers(0, 120)),
        st.tuples(st.sampled_from(["use", "delete", "grow"]), st.integers(0, 9), st.integers(0, 60)),
    ),
    max_size=60,
)


class Entry(NamedTuple):
    key: str
    name: str
    size: int


class Store:
    """A store with shares, and its plain model: a list."""

    def __init__(self) -> None:
        self.shares = Shares(MAX_ENTRIES, MAX_BYTES)
        self.kept: list[Entry] = []
        """The least recently used first."""

    def put(self, entry: Entry) -> None:
        self.kept.append(entry)
        self.shares.add(entry.key, entry.name)
        self.shares.charge(entry.key, entry.size)

    def use(self, entry: Entry, more: int) -> None:
        self.kept.remove(entry)
        self.kept.append(entry._replace(size=entry.size + more))
        self.shares.use(entry.name)
        self.shares.charge(entry.key, more)

    def delete(self, entry: Entry) -> None:
        self.kept.remove(entry)
        self.shares.remove(entry.name)
        self.shares.charge(entry.key, -entry.size)

    def used(self, key: str) -> tuple[int, int]:
        sizes = [entry.size for entry in self.kept if entry.key == key]
        return len(sizes), sum(sizes)

    def evicted(self) -> list[str]:
        """Names of those that go, each the oldest of the key that has most, which has more than its share."""
        gone = []
        while (name := self.shares.excess()) is not None:
            (going,) = [entry for entry in self.kept if entry.name == name]
            assert going == next(entry for entry in self.kept if entry.key == going.key)
            measure, capacity = (0, MAX_ENTRIES) if len(self.kept) > MAX_ENTRIES else (1, MAX_BYTES)
            used = {key: self.used(key)[measure] for key in {entry.key for entry in self.kept}}
            assert used[going.key] == max(used.values())
            assert used[going.key] * len(used) > capacity
            self.delete(going)
            gone.append(name)
        return gone


@given(STEPS)
def test_the_key_that_has_most_loses_its_oldest(steps: list[Any]) -> None:
    store = Store()
    for number, (what, which, size) in enumerate(steps):
        if what == "put":
            entry, room = Entry(which, f"n{number}", size), store.shares.room(which)
            store.put(entry)
        elif store.kept:
            entry = store.kept[which % len(store.kept)]
            room = store.shares.room(entry.key)
            if what == "delete":
                store.delete(entry)
            else:
                more = size if what == "grow" else 0
                store.use(entry, more)
                entry = entry._replace(size=entry.size + more)
        else:
            continue
        # What there is room for stays.
        assert (entry.name in store.evicted()) <= (entry.size > room)
        assert len(store.shares) == len(store.kept) <= MAX_ENTRIES
        assert store.shares.bytes == sum(entry.size for entry in store.kept) <= MAX_BYTES
        assert not store.shares.is_over
        for key in "abc":
            assert (store.shares.count(key), store.shares.used(key)) == store.used(key)


@given(st.integers(0, 200), st.lists(st.integers(0, 100), max_size=5))
def test_room_is_what_others_leave_that_have_no_more(capacity: int, others: list[int]) -> None:
    room = room_beside(capacity, others)
    fits = [size for size in range(capacity + 1) if size + sum(min(used, size) for used in others) <= capacity]
    assert room == max(fits)
    assert room >= capacity // (len(others) + 1)


def test_what_may_not_go_stays() -> None:
    shares = Shares(2, 100)
    shares.add("a", "first", pinned=True)
    shares.add("a", "second")
    shares.add("b", "third")
    assert shares.excess() == "second"
    shares.remove("second")
    assert shares.excess() is None
    shares.add("a", "fourth", pinned=True)
    # The other key has no more than its share.
    assert (shares.excess(), shares.is_over) == (None, True)
    shares.use("first")
    assert shares.owner("first") == "a"


def test_of_keys_that_have_as_much_the_one_loses_that_was_not_used_for_longest() -> None:
    shares = Shares(2, 100)
    for key in "abc":
        shares.add(key, f"of {key}")
    assert shares.excess() == "of a"
    shares.use("of a")
    assert shares.excess() == "of b"


def test_using_what_is_gone_changes_nothing() -> None:
    shares = Shares(2, 100)
    shares.add("a", "one")
    shares.remove("one")
    shares.use("one")
    assert (len(shares), shares.excess(), shares.count("a")) == (0, None, 0)
