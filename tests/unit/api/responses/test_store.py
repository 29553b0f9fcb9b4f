"""What is kept of responses, and for how long."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.api.responses.store import References, ResponseStore, Snapshot, Stored
from openai_bls.core.errors import InvalidRequestError


def message(name: str, size: int = 1) -> dict[str, Any]:
    return {"id": name, "type": "message", "text": "x" * size}


def stored(name: str, previous: Stored | None = None, size: int = 1) -> Stored:
    response = {"id": name, "output": [message(f"{name}_out", size)]}
    return Stored(msgspec.json.encode(response), [message(f"{name}_in")], previous)


def ids(items: list[dict[str, Any]]) -> list[str]:
    return [item["id"] for item in items]


def test_deleting() -> None:
    store = ResponseStore()
    first = stored("r1")
    second = stored("r2", first)
    store.put(first)
    store.put(second)
    assert store.delete("r1")
    assert not store.delete("r1")
    assert store.get("r1") is None
    assert store.owner("r1_out") is None
    # Its text is still kept, for what continues it.
    assert ids(second.items)[:2] == ["r1_in", "r1_out"]
    assert store.size == first.size + second.size
    assert store.delete("r2")
    assert (store.size, len(store)) == (0, 0)
    # It may be forgotten while it is being continued.
    third = stored("r3", first)
    store.put(third)
    assert store.size == first.size + third.size
    store.delete("r3")
    assert store.size == 0


def test_the_least_recently_used_go_first() -> None:
    store = ResponseStore(max_responses=2)
    for name in ("r1", "r2"):
        store.put(stored(name))
    assert store.get("r1") is not None
    store.put(stored("r3"))
    assert [store.get(name) is not None for name in ("r1", "r2", "r3")] == [True, False, True]
    assert store.owner("r2_in") is None


def test_what_is_too_large_by_itself_is_not_kept() -> None:
    store = ResponseStore(max_bytes=5000)
    store.put(stored("r1"))
    store.put(stored("r2", size=6000))
    assert (store.size, len(store)) == (0, 0)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "continue", "get", "delete"]), st.integers(0, 8), st.integers(0, 3000)),
        max_size=40,
    )
)
def test_the_bounds_hold_and_every_byte_is_counted_once(steps: list[tuple[str, int, int]]) -> None:
    store = ResponseStore(max_responses=4, max_bytes=20_000)
    listed: dict[str, Stored] = {}
    for number, (action, which, size) in enumerate(steps):
        name = f"r{which}"
        known = store.get(name) if action in ("continue", "get") else None
        if action in ("put", "continue"):
            new = stored(f"{name}" if action == "put" else f"n{number}", known, size)
            store.delete(new.id)
            store.put(new)
            listed[new.id] = new
        elif action == "delete":
            store.delete(name)
        alive = {id(entry): entry for key, entry in listed.items() if store.get(key) is entry}
        reached: dict[int, Stored | Snapshot] = dict(alive)
        for entry in alive.values():
            node: Stored | Snapshot | None = entry
            while node is not None:
                reached[id(node)] = node
                node = node.previous
        assert len(alive) == len(store) <= 4
        assert store.size == sum(entry.size for entry in reached.values()) <= 20_000


def test_a_long_conversation_is_not_a_deep_recursion() -> None:
    store = ResponseStore(max_responses=1, max_bytes=10**9)
    last: Stored | None = None
    for number in range(3000):
        last = stored(f"r{number}", last)
        store.put(last)
    assert last is not None
    assert len(last.items) == 6000
    assert len(store) == 1
    store.delete("r2999")
    assert store.size == 0


# --- what a request refers to ---


def refused(references: References, item_id: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        references.take(item_id, "input[3].id")
    assert caught.value.param == "input[3].id"


def test_items_are_referred_to_once() -> None:
    store = ResponseStore()
    store.put(stored("r1"))
    references = References(store, 1000)
    assert references.take("r1_out", "input[0].id") == message("r1_out")
    assert references.take("r1_in", "input[1].id") == message("r1_in")
    for item_id in ("r1_out", "r1_in", "r1"):
        refused(references, item_id)
    # Another request may do so again.
    assert References(store, 1000).take("r1_out", "input[0].id") == message("r1_out")


def test_of_two_items_of_one_id_it_is_the_first() -> None:
    store = ResponseStore()
    response = {"id": "r1", "output": []}
    inputs = [{"id": "mine", "n": 1}, {"id": "mine", "n": 2}]
    store.put(Stored(msgspec.json.encode(response), inputs, None))
    assert References(store, 1000).take("mine", "input[0].id") == inputs[0]


def test_a_response_is_looked_through_once_however_many_items_are_referred_to(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ResponseStore()
    response = {"id": "r1", "output": [message(f"out{at}", 100) for at in range(50)]}
    store.put(Stored(msgspec.json.encode(response), [], None))
    store.put(stored("r2"))
    texts = Stored.texts
    looked: list[str] = []

    def counted(one: Stored) -> Any:
        looked.append(one.id)
        return texts.__get__(one)

    monkeypatch.setattr(Stored, "texts", property(counted))
    references = References(store, 10**6)
    for item_id in (*(f"out{at}" for at in range(50)), "r2_out"):
        assert references.take(item_id, "input[0].id")["id"] == item_id
    assert looked == ["r1", "r2"]
