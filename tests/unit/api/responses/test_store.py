"""What is kept of responses, and for how long."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.api.common.large_bodies import parsed
from openai_bls.api.responses.kept import ITEM_OVERHEAD, KeptItem
from openai_bls.api.responses.store import Inputs, References, ResponseStore, Stored
from openai_bls.core.errors import InvalidRequestError


def message(name: str, size: int = 1) -> dict[str, Any]:
    return {"id": name, "type": "message", "text": "x" * size}


def stored(name: str, previous: Stored | None = None, size: int = 1) -> Stored:
    response = {"id": name, "output": [message(f"{name}_out", size)]}
    return Stored(msgspec.json.encode(response), Inputs([message(f"{name}_in")], previous))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of the items that are decoded from here on."""
    seen: list[str] = []
    item = KeptItem.item

    def counted(one: KeptItem) -> Any:
        seen.append(one.id)
        return item(one)

    monkeypatch.setattr(KeptItem, "item", counted)
    return seen


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
    assert store.item("r1_out") is None
    # Its text is still kept, for what continues it.
    assert ids(second.items)[:2] == ["r1_in", "r1_out"]
    assert store.size == second.total_size
    assert store.delete("r2")
    assert (store.size, len(store)) == (0, 0)
    # It may be forgotten while it is being continued.
    third = stored("r3", first)
    store.put(third)
    assert store.size == third.total_size
    store.delete("r3")
    assert store.size == 0


def test_the_least_recently_used_go_first() -> None:
    store = ResponseStore(max_responses=2)
    for name in ("r1", "r2"):
        store.put(stored(name))
    assert store.get("r1") is not None
    store.put(stored("r3"))
    assert [store.get(name) is not None for name in ("r1", "r2", "r3")] == [True, False, True]
    assert store.item("r2_in") is None


def test_what_is_too_large_by_itself_is_not_kept() -> None:
    store = ResponseStore(max_bytes=8000)
    first = stored("r1")
    assert store.put(first)
    assert not store.put(stored("r2", size=9000))
    assert not store.put(stored("r3", first, size=5000))
    assert [store.get(name) for name in ("r1", "r2", "r3")] == [first, None, None]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "continue", "get", "delete"]), st.integers(0, 8), st.integers(0, 3000)),
        max_size=40,
    )
)
def test_the_bounds_hold_and_every_byte_is_counted_once(steps: list[tuple[str, int, int]]) -> None:
    store = ResponseStore(max_responses=4, max_bytes=30_000)
    listed: dict[str, Stored] = {}
    for number, (action, which, size) in enumerate(steps):
        name = f"r{which}"
        known = store.get(name) if action in ("continue", "get") else None
        if action in ("put", "continue"):
            new = stored(f"{name}" if action == "put" else f"n{number}", known, size)
            store.delete(new.id)
            if store.put(new):
                listed[new.id] = new
        elif action == "delete":
            store.delete(name)
        alive = {id(entry): entry for key, entry in listed.items() if store.get(key) is entry}
        reached: dict[int, Any] = dict(alive)
        for entry in alive.values():
            node: Any = entry
            while node is not None:
                reached[id(node)] = node
                node = node.previous
        assert len(alive) == len(store) <= 4
        assert store.size == sum(entry.size for entry in reached.values()) <= 30_000


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
    store.put(Stored(msgspec.json.encode(response), Inputs(inputs, None)))
    assert References(store, 1000).take("mine", "input[0].id") == inputs[0]


def test_a_reference_decodes_its_own_item_alone(decoded: list[str]) -> None:
    store = ResponseStore()
    response = {"id": "r1", "output": [message(f"out{at}", 100) for at in range(50)]}
    store.put(Stored(msgspec.json.encode(response), Inputs([message(f"in{at}") for at in range(50)], None)))
    references = References(store, 10**6)
    for item_id in ("out7", "in8", "out0"):
        assert references.take(item_id, "input[0].id")["id"] == item_id
    assert decoded == ["out7", "in8", "out0"]
    assert store.put(stored("r2"))
    assert decoded == ["out7", "in8", "out0"]


def test_what_is_referred_to_has_a_bound() -> None:
    store = ResponseStore()
    kept = [message(f"in{at}", 100) for at in range(4)]
    store.put(Stored(b'{"id":"r1","output":[]}', Inputs(kept, None)))
    references = References(store, 3 * len(msgspec.json.encode(kept[0])))
    for at in range(3):
        references.take(f"in{at}", "input[0].id")
    refused(references, "in3")


async def test_much_that_is_referred_to_is_for_a_thread() -> None:
    store = ResponseStore()
    store.put(Stored(b'{"id":"small","output":[]}', Inputs([message(f"a{at}") for at in range(10)], None)))
    store.put(Stored(b'{"id":"many","output":[]}', Inputs([message(f"b{at}") for at in range(1000)], None)))
    store.put(Stored(b'{"id":"long","output":[]}', Inputs([message("c", 10**6)], None)))
    threads: list[threading.Thread] = []

    def items_of(*names: str) -> Any:
        def parse() -> list[Any]:
            found = [References(store, 10**7).response(name) for name in names]
            items = [item for one in found if one is not None for item in one.items]
            threads.append(threading.current_thread())
            return items

        return parse

    def taken(item_ids: Sequence[str]) -> Any:
        def parse() -> list[Any]:
            references = References(store, 10**7)
            items = [references.take(item_id, "input[0].id") for item_id in item_ids]
            threads.append(threading.current_thread())
            return items

        return parse

    here = threading.current_thread()
    for parse, number, is_here in (
        (items_of("small"), 10, True),
        (items_of("many"), 1000, False),
        (items_of("long"), 1, False),
        (taken([f"b{at}" for at in range(100)]), 100, True),
        (taken([f"b{at}" for at in range(1000)]), 1000, False),
        (taken(["c"]), 1, False),
    ):
        threads.clear()
        assert len(await parsed(parse, large=False, key="")) == number
        assert [thread is here for thread in threads] == [is_here]


# --- shares of API keys ---


def test_what_one_key_stores_takes_nothing_from_another() -> None:
    store = ResponseStore(max_responses=10, max_bytes=20 * (2 * ITEM_OVERHEAD + 1024 + 200))
    mine = [of_key(f"mine{at}", "a") for at in range(3)]
    for one in mine:
        assert store.put(one)
    for at in range(100):
        assert store.put(of_key(f"other{at}", "b"))
    assert all(store.get(one.id, "a") for one in mine)
    assert len(store) == 10
    # A key with less than its share takes from the one that has more.
    for at in range(3, 20):
        assert store.put(of_key(f"mine{at}", "a"))
    assert sum(store.get(f"other{at}", "b") is not None for at in range(100)) == 5


def of_key(name: str, key: str) -> Stored:
    response = {"id": name, "output": [message(f"{name}_out")]}
    return Stored(msgspec.json.encode(response), Inputs([message(f"{name}_in")], None), key=key)
