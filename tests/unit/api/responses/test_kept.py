"""Items as the stores keep them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.api.responses.kept import (
    ITEM_OVERHEAD,
    ItemIndex,
    KeptItem,
    changed,
    copied,
    is_response,
    kept_items,
    kept_output,
    repeated,
)

LARGE = "data:image/png;base64," + "A" * 5000
IMAGES = st.sampled_from([LARGE, "https://example.com/a.png", None, "kept:7", LARGE + "B"])
PARTS = st.one_of(
    st.builds(lambda text: {"type": "input_text", "text": text}, st.text(max_size=5)),
    st.builds(
        lambda url, at: {"type": "input_image", "image_url": url, "file_id": at, "detail": "auto"},
        IMAGES,
        st.sampled_from([None, "file-1"]),
    ),
)
ITEMS = st.one_of(
    st.builds(
        lambda parts: {"id": "i", "type": "message", "role": "user", "content": parts}, st.lists(PARTS, max_size=4)
    ),
    st.builds(
        lambda parts: {"id": "i", "type": "function_call_output", "call_id": "c", "output": parts},
        st.lists(PARTS, max_size=4) | st.text(max_size=5),
    ),
    # Such as a server's tool leaves behind: anything may be in it.
    st.builds(
        lambda value: {"id": "i", "type": "computer_call_output", "output": value, "content": value},
        st.recursive(
            st.none()
            | st.text(max_size=3)
            | st.builds(lambda url: {"type": "input_image", "image_url": url}, IMAGES | st.integers(0, 3)),
            lambda v: st.lists(v, max_size=3),
        ),
    ),
)


@given(st.lists(ITEMS, max_size=5))
def test_an_item_comes_back_as_it_was(items: list[dict[str, Any]]) -> None:
    kept = kept_items(items)
    assert [one.item() for one in kept] == items
    for one, item in zip(kept, items, strict=True):
        # The API has images in one list; those that hang deeper are part of the text.
        assert item["type"] == "computer_call_output" or LARGE.encode() not in bytes(one.text)
        assert one.content_size == one.size - ITEM_OVERHEAD >= len(msgspec.json.encode(item)) - 4096
        assert one.renamed("other").item() == {**item, "id": "other"}


def test_calls_and_their_outputs() -> None:
    call = {"id": "fc", "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    shell = {"id": "sh", "type": "local_shell_call", "call_id": "s", "action": {}}
    outputs: list[dict[str, Any]] = [
        {"id": "o1", "type": "function_call_output", "call_id": "c", "output": ""},
        {"id": "sh", "type": "local_shell_call_output", "output": ""},
        {"id": "o2", "type": "tool_search_output", "execution": "server", "call_id": None, "tools": []},
        {"id": "o3", "type": "computer_call_output", "call_id": "q", "output": {}},
        {"id": "m", "type": "message", "role": "user", "content": []},
    ]
    kept = kept_items([call, shell, *outputs])
    assert [one.calls for one in kept] == [("c",), ("s", "sh"), (), (), (), (), ()]
    assert [one.answers for one in kept] == [None, None, "c", "sh", None, None, None]
    _, said = kept_output(msgspec.json.encode({"id": "r", "output": [call, shell]}))
    assert [one.calls for one in said] == [("c",), ("s", "sh")]


def test_the_output_of_a_response() -> None:
    items = [{"id": "a", "type": "message", "content": ["x"]}, {"id": "b", "type": "reasoning"}]
    text = msgspec.json.encode({"id": "r", "status": "completed", "output": items, "store": True})
    response_id, output = kept_output(text)
    assert (response_id, [one.item() for one in output]) == ("r", items)
    assert [one.item() for one in copied(output)] == items
    assert [one.size - ITEM_OVERHEAD for one in copied(output)] == [len(msgspec.json.encode(item)) for item in items]
    assert (is_response(text, "r"), is_response(text, "s"), is_response(b'{"id":"r"}', "r")) == (True, False, False)
    told = msgspec.json.decode(changed(text, store=False))
    assert told == {**msgspec.json.decode(text), "store": False}
    with pytest.raises(msgspec.ValidationError):
        kept_output(b'{"id":"r","output":[{}]}')


@given(st.lists(st.sampled_from("abcdef"), max_size=6))
def test_the_first_that_is_repeated(ids: list[str]) -> None:
    found = repeated(kept_items([{"id": item_id, "type": "message"} for item_id in ids]))
    assert found == next((at for at, item_id in enumerate(ids) if item_id in ids[:at]), None)


class Holder:
    def __init__(self) -> None:
        self.by_id: dict[str, KeptItem] = {}


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["add", "discard"]), st.sets(st.integers(0, 4), max_size=4)),
        max_size=30,
    )
)
def test_an_id_is_found_as_long_as_a_holder_has_it(steps: list[tuple[int, str, set[int]]]) -> None:
    index: ItemIndex[Holder] = ItemIndex()
    holders = [Holder() for _ in range(4)]
    # The model: holders of each id by their key, the last that was added at the end.
    model: dict[tuple[str, str], list[Holder]] = {}
    for which, what, numbers in steps:
        holder, key = holders[which], "ab"[which % 2]
        ids = {f"i{number}" for number in numbers}
        ids = ids - holder.by_id.keys() if what == "add" else ids & holder.by_id.keys()
        if what == "add":
            index.add(key, sorted(ids), holder)
        else:
            index.discard(key, sorted(ids), holder)
        for item_id in ids:
            if what == "add":
                holder.by_id[item_id] = KeptItem(item_id, b"{}", which)
                model.setdefault((key, item_id), []).append(holder)
            else:
                del holder.by_id[item_id]
                model[key, item_id].remove(holder)
        for key in "ab":
            for number in range(5):
                found, holding = index.find(key, f"i{number}"), model.get((key, f"i{number}"))
                assert found is (holding[-1].by_id[f"i{number}"] if holding else None)
    for holder, key in zip(holders, "abab", strict=True):
        index.discard(key, list(holder.by_id), holder)
    assert not index._holders
