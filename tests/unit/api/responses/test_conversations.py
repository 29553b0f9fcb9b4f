"""/v1/conversations, and responses that are made in one."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.conversations import Conversation as SdkConversation
from openai.types.conversations import ConversationDeletedResource, ConversationItemList

from openai_bls.api.responses.conversations.store import Conversation, ConversationStore
from openai_bls.api.responses.kept import KeptItem, kept_items
from openai_bls.core.errors import InvalidRequestError
from tests.unit.api.responses.responses_support import PATH, Client, Place, checked
from tests.unit.core_support import EOS, Bench, until

CONVERSATIONS = "/v1/conversations"


def message(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **more}


def made(place: Place, **body: Any) -> str:
    """The id of a new conversation."""
    reply = place.ask("POST", CONVERSATIONS, body)
    assert reply.status == 200, reply.text
    checked(SdkConversation, reply.json())
    return str(reply.json()["id"])


def items_of(place: Place, conversation_id: str, query: str = "order=asc&limit=100") -> list[dict[str, Any]]:
    reply = place.ask("GET", f"{CONVERSATIONS}/{conversation_id}/items", query=query)
    assert reply.status == 200, reply.text
    checked(ConversationItemList, reply.json())
    found: list[dict[str, Any]] = reply.json()["data"]
    return found


def texts(items: list[dict[str, Any]]) -> list[str]:
    return [item["content"][0]["text"] for item in items]


def test_the_life_of_a_conversation() -> None:
    place = Place()
    conversation_id = made(place, items=[message("one")], metadata={"a": "b"})
    path = f"{CONVERSATIONS}/{conversation_id}"
    assert place.ask("GET", path).json()["metadata"] == {"a": "b"}
    for metadata in ({"c": "d"}, None):
        assert place.ask("POST", path, {"metadata": metadata}).json()["metadata"] == (metadata or {})
    assert checked(ConversationDeletedResource, place.ask("DELETE", path).json()).deleted
    for method, body in (("GET", b""), ("DELETE", b""), ("POST", {"metadata": None})):
        gone = place.ask(method, path, body)
        assert (gone.status, conversation_id in gone.error["message"]) == (404, True)
    assert place.ask("POST", PATH, {"input": "hi", "conversation": conversation_id}).status == 404
    assert place.conversations.size == 0


@pytest.mark.parametrize("body", [{}, {"stream": True}, {"background": True}, {"store": False}], ids=str)
@pytest.mark.parametrize("named", [False, True])
async def test_a_response_is_made_in_it(body: dict[str, Any], named: bool) -> None:
    client = Client(Place())
    reply = await client.send("POST", CONVERSATIONS, {"items": [message("one"), message("two")]})
    conversation_id = reply.json()["id"]
    conversation = {"id": conversation_id} if named else conversation_id
    task = asyncio.ensure_future(client.send("POST", PATH, {"input": "three", "conversation": conversation, **body}))
    await until(lambda: bool(client.engine.requests) or task.done())
    assert len(client.place.messages) == 3
    # Nothing is added before the end.
    path = f"{CONVERSATIONS}/{conversation_id}/items"
    assert len((await client.send("GET", path)).json()["data"]) == 2
    client.engine.deliver(0, "four", "stop", stop_token_id=EOS)
    said = (await task).text
    assert f'"conversation":{{"id":"{conversation_id}"}}' in said
    store = client.place.conversations
    await until(lambda: len(store.get(conversation_id, "").by_id) == 4)
    listed = (await client.send("GET", path, query="order=asc")).json()["data"]
    assert texts(listed) == ["one", "two", "three", "four"]


def test_a_response_that_fails_adds_nothing() -> None:
    place = Place()
    conversation_id = made(place)
    place.create({"conversation": conversation_id, "stream": True}, ["half"], "error", error="out of memory")
    assert not place.conversations.get(conversation_id, "").by_id


def test_what_it_was_made_from_stays() -> None:
    """A response keeps the conversation as it was: to list its input, and to be continued."""
    place = Place()
    conversation_id = made(place, items=[message("one")])
    first = place.whole({"input": "two", "conversation": conversation_id}, ["three"])
    place.ask("DELETE", f"{CONVERSATIONS}/{conversation_id}")
    listed = place.ask("GET", f"{PATH}/{first['id']}/input_items", query="order=asc").json()["data"]
    assert texts(listed) == ["one", "two"]
    place.whole({"input": "four", "previous_response_id": first["id"]})
    assert [message["content"] for message in place.messages[:2]] == ["one", "two"]
    assert len(place.messages) == 4


def test_items() -> None:
    place = Place()
    conversation_id = made(place)
    path = f"{CONVERSATIONS}/{conversation_id}/items"
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    added = place.ask("POST", path, {"items": [message("one", id="msg_1"), thought, message("three", id="msg_3")]})
    assert [item["id"] for item in checked(ConversationItemList, added.json()).to_dict()["data"]] == [
        *("msg_1", "rs_1", "msg_3")
    ]
    assert [item["id"] for item in items_of(place, conversation_id, "limit=2")] == ["msg_3", "rs_1"]
    assert [item["id"] for item in items_of(place, conversation_id, "after=rs_1")] == ["msg_1"]
    sealed = place.ask("GET", f"{path}/rs_1", query="include[]=reasoning.encrypted_content").json()
    assert sealed["encrypted_content"]
    assert "encrypted_content" not in place.ask("GET", f"{path}/rs_1").json()
    assert place.ask("DELETE", f"{path}/rs_1").json()["id"] == conversation_id
    for method in ("GET", "DELETE"):
        assert place.ask(method, f"{path}/rs_1").status == 404
    # By reference, from outside of the conversation.
    place.whole({"input": [{"type": "item_reference", "id": "msg_1"}, message("and?")]})
    assert len(place.messages) == 2


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"items": [message("x", id="msg_1")]}, "items[0].id"),
        ({"items": [message("x", id="a"), message("y", id="a")]}, "items[1].id"),
        ({"items": [message("x")] * 21}, "items"),
        ({"items": [{"type": "compaction_trigger"}]}, "items[0].type"),
        ({"items": [message("x")], "colour": "red"}, "colour"),
        ({}, "items"),
    ],
    ids=["known", "twice", "many", "kind", "unknown", "none"],
)
def test_items_that_cannot_be_added(body: dict[str, Any], param: str) -> None:
    place = Place()
    conversation_id = made(place, items=[message("one", id="msg_1")])
    refused = place.ask("POST", f"{CONVERSATIONS}/{conversation_id}/items", body)
    assert (refused.status, refused.error["param"]) == (400, param)
    assert len(items_of(place, conversation_id)) == 1


def test_not_with_an_earlier_response() -> None:
    place = Place()
    conversation_id = made(place, items=[message("one")])
    first = place.whole({})
    body = {"input": "hi", "conversation": conversation_id, "previous_response_id": first["id"]}
    refused = place.ask("POST", PATH, body)
    assert (refused.status, refused.error["param"]) == (400, "previous_response_id")


async def test_each_key_has_its_own(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a: a\nb: b\n", encoding="utf-8")
    client = Client(Place(Bench(api_keys_file=str(keys))))
    reply = await client.send("POST", CONVERSATIONS, {"items": [message("one", id="msg_1")]}, key="a")
    path = f"{CONVERSATIONS}/{reply.json()['id']}"
    for method, tail, body in (
        ("GET", "", b""),
        ("DELETE", "", b""),
        ("POST", "", {"metadata": {}}),
        ("GET", "/items", b""),
        ("POST", "/items", {"items": [message("x")]}),
        ("GET", "/items/msg_1", b""),
        ("DELETE", "/items/msg_1", b""),
    ):
        assert (await client.send(method, path + tail, body, key="b")).status == 404
    for reference in ({"conversation": reply.json()["id"]}, {"input": [{"type": "item_reference", "id": "msg_1"}]}):
        assert (await client.send("POST", PATH, {"input": "hi", **reference}, key="b")).status in (400, 404)
    assert (await client.send("GET", f"{path}/items/msg_1", key="a")).status == 200


# --- bounds, costs and shares ---


def filled(place: Place, count: int, key: str = "", **more: Any) -> str:
    """The id of a conversation with so many messages, `m0` and so on."""
    items = [{**MESSAGE, "id": f"m{at}", **more} for at in range(count)]
    return place.conversations.create(kept_items(items), {}, key).id


MESSAGE: dict[str, Any] = {
    "type": "message",
    "status": "completed",
    "role": "user",
    "content": [{"type": "input_text", "text": "x" * 100}],
}


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of the items that are decoded."""
    seen: list[str] = []
    item = KeptItem.item

    def counted(one: KeptItem) -> Any:
        seen.append(one.id)
        return item(one)

    monkeypatch.setattr(KeptItem, "item", counted)
    return seen


def test_what_is_asked_for_is_decoded_and_nothing_else(decoded: list[str]) -> None:
    place = Place()
    path = f"{CONVERSATIONS}/{filled(place, 5000)}/items"
    for query, ids in (
        ("limit=1", ["m4999"]),
        ("limit=2&order=asc&after=m2499", ["m2500", "m2501"]),
        ("limit=1&include[]=reasoning.encrypted_content", ["m4999"]),
    ):
        decoded.clear()
        listed = place.ask("GET", path, query=query).json()["data"]
        assert [item["id"] for item in listed] == decoded == ids
    decoded.clear()
    assert place.ask("GET", f"{path}/m17").json()["id"] == "m17"
    assert decoded == ["m17"]
    decoded.clear()
    assert place.ask("POST", path, {"items": [message("more")]}).status == 200
    assert len(decoded) == 1
    decoded.clear()
    assert place.ask("DELETE", f"{path}/m17").status == 200
    assert decoded == []
    referred = [{"type": "item_reference", "id": f"m{at}"} for at in range(100, 200)]
    place.ask("POST", f"{PATH}/input_tokens", {"input": referred})
    assert decoded == [f"m{at}" for at in range(100, 200)]


def test_adding_costs_what_is_added() -> None:
    """The lines of Python that run are as many for the thousandth item as for the first."""
    store = ConversationStore()
    conversation = store.create([], {}, "k")
    costs = []
    for at in range(1000):
        items = kept_items([{"id": f"i{at}", "type": "message"}])
        # Also in turn with removals, and with snapshots of responses that are made.
        costs.append(lines_run(lambda items=items: store.add(conversation, items)))
        conversation.snapshot()
        if at % 10 == 9:
            costs.append(lines_run(lambda at=at: store.remove_item(conversation, f"i{at}")))
    assert len(conversation.by_id) == 900
    assert max(costs) < 2 * costs[0]


def lines_run(call: Any) -> int:
    """Number of lines of Python that a call runs, those of generators each time."""
    count = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def test_a_conversation_has_so_many_items(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place()
    place.conversations = ConversationStore(max_items=3)
    conversation_id = filled(place, 2)
    refused = place.ask("POST", f"{CONVERSATIONS}/{conversation_id}/items", {"items": [message("a"), message("b")]})
    assert (refused.status, refused.error["param"], refused.error["code"]) == (400, "items", "too_many_items")
    error = place.refused(conversation=conversation_id, input=[message("a"), message("b")])
    assert (error["param"], error["code"]) == ("input", "too_many_items")
    # The answer comes on top.
    place.whole({"conversation": conversation_id})
    assert len(items_of(place, conversation_id)) == 4
    assert place.ask("POST", PATH, {"input": "hi", "conversation": conversation_id}).error["code"] == "too_many_items"
    many = place.ask("POST", CONVERSATIONS, {"items": [message("x")] * 4})
    assert (many.status, many.error["param"], many.error["code"]) == (400, "items", "too_many_items")


def test_a_conversation_that_has_no_room_refuses_more() -> None:
    place = Place()
    place.conversations = ConversationStore(max_bytes=30_000)
    mine, other = filled(place, 10), filled(place, 10, "b")
    path, added = f"{CONVERSATIONS}/{mine}/items", 0
    while (reply := place.ask("POST", path, {"items": [message("y" * 500)]})).status == 200:
        added += 1
    assert (reply.status, reply.error["param"], reply.error["code"]) == (400, "items", "storage_quota_exceeded")
    assert len(items_of(place, mine)) == 10 + added > 11
    error = place.refused(conversation=mine, input="z" * 5000)
    assert (error["param"], error["code"]) == ("input", "storage_quota_exceeded")
    full = place.ask("POST", f"{CONVERSATIONS}/{mine}", {"metadata": {f"k{at}": "v" * 512 for at in range(16)}})
    assert (full.status, full.error["param"], full.error["code"]) == (400, "metadata", "storage_quota_exceeded")
    large = place.ask("POST", CONVERSATIONS, {"items": [message("y" * 30_000)]})
    assert (large.status, large.error["param"], large.error["code"]) == (400, "items", "storage_quota_exceeded")
    assert len(items_of(place, mine)) == 10 + added
    assert len(place.conversations.get(other, "b").by_id) == 10


@pytest.mark.parametrize("mode", ["whole", "stream", "background", "background stream"])
async def test_an_answer_that_cannot_be_added_is_told_so(mode: str) -> None:
    place = Place()
    place.conversations = ConversationStore(max_bytes=8000)
    conversation_id = filled(place, 2)
    client = Client(place)
    body = {"input": "hi", "conversation": conversation_id, **{word: True for word in mode.split() if word != "whole"}}
    task = asyncio.ensure_future(client.send("POST", PATH, body))
    await until(lambda: bool(client.engine.requests))
    client.engine.deliver(0, "y" * 6000, "stop", stop_token_id=EOS)
    reply = await task
    found = reply.events[-1]["response"] if "stream" in mode else reply.json()
    while found["status"] in ("queued", "in_progress"):
        found = await client.get(found["id"])
    assert (found["status"], found["conversation"]) == ("completed", None)
    assert found["output"][0]["content"][0]["text"] == "y" * 6000
    assert (await client.get(found["id"]))["conversation"] is None
    assert len(place.conversations.get(conversation_id, "").by_id) == 2


@pytest.mark.parametrize("mode", [{}, {"stream": True}, {"background": True}, {"store": False}], ids=str)
def test_two_items_of_one_id_are_refused_before_the_answer(mode: dict[str, Any]) -> None:
    place = Place()
    body = {"input": [message("a", id="x"), message("b", id="x")], "conversation": made(place), **mode}
    reply = place.ask("POST", PATH, body)
    assert (reply.status, reply.error["param"]) == (400, "input[1].id")
    assert not place.bench.engine.requests


def test_an_item_is_found_as_long_as_one_conversation_has_it() -> None:
    place = Place()
    first, second = (made(place, items=[message(text, id="same")]) for text in ("one", "two"))
    reference = {"input": [{"type": "item_reference", "id": "same"}]}
    place.whole({**reference, "store": False})
    assert place.messages[0]["content"] == "two"
    place.ask("DELETE", f"{CONVERSATIONS}/{second}")
    place.whole({**reference, "store": False})
    assert place.messages[0]["content"] == "one"
    place.ask("DELETE", f"{CONVERSATIONS}/{first}/items/same")
    assert place.ask("POST", PATH, reference).error["param"] == "input[0].id"


def test_an_output_needs_its_call() -> None:
    place = Place()
    output = {"type": "function_call_output", "call_id": "c", "output": "42"}
    call = {"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": "{}"}
    for items in ([output], [message("x"), output], [output, call]):
        refused = place.ask("POST", CONVERSATIONS, {"items": items})
        assert (refused.status, refused.error["param"]) == (400, f"items[{items.index(output)}].call_id")
    conversation_id = made(place, items=[call])
    path = f"{CONVERSATIONS}/{conversation_id}/items"
    assert place.ask("POST", path, {"items": [output]}).status == 200
    place.ask("DELETE", f"{path}/fc")
    assert place.ask("POST", path, {"items": [output]}).error["param"] == "items[0].call_id"
    assert place.refused(conversation=conversation_id)["param"] == "conversation"


def test_an_empty_page_is_as_the_sdk_has_it() -> None:
    place = Place()
    page = place.ask("GET", f"{CONVERSATIONS}/{made(place)}/items").json()
    checked(ConversationItemList, page)
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("", "", False)


async def test_a_long_conversation_is_read_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place()
    ids = [filled(place, count) for count in (10, 1000)]
    client = Client(place)
    threads: list[set[threading.Thread]] = []
    item = KeptItem.item

    def noted(one: KeptItem) -> Any:
        threads[-1].add(threading.current_thread())
        return item(one)

    monkeypatch.setattr(KeptItem, "item", noted)
    for number, conversation_id in enumerate(ids):
        threads.append(set())
        task = asyncio.ensure_future(
            client.send("POST", f"{PATH}/input_tokens", {"input": "hi", "conversation": conversation_id})
        )
        await until(task.done)
        assert (threading.current_thread() in threads[number]) == (number == 0)
        assert len(threads[number]) == 1


def test_what_one_key_fills_is_its_own() -> None:
    place = Place()
    mine = filled(place, 3, "a")
    for _ in range(1100):
        place.conversations.create((), {}, "b")
    assert len(place.conversations) == 1000
    assert len(place.conversations.get(mine, "a").by_id) == 3


@given(
    st.lists(
        st.tuples(st.sampled_from(["create", "add", "remove", "delete"]), st.integers(0, 5), st.integers(0, 9)),
        max_size=40,
    )
)
def test_the_store_is_bounded_and_counts_right(steps: list[tuple[str, int, int]]) -> None:
    store = ConversationStore(max_conversations=3, max_bytes=8000)
    held = [store.create([], {}, "a")]
    for what, which, number in steps:
        conversation = held[which % len(held)]
        items = kept_items([{"id": f"i{number}", "text": "x" * 300 * number}])
        before = {one.id: list(one.by_id) for one in store._conversations.values()}
        try:
            if what == "create":
                held.append(store.create(items, {}, "ab"[which % 2]))
                conversation = held[-1]
            elif what == "add":
                store.add(conversation, items)
            elif what == "remove":
                store.remove_item(conversation, f"i{number}")
            else:
                store.delete(conversation)
        except InvalidRequestError:
            assert {one.id: list(one.by_id) for one in store._conversations.values()} == before
        else:
            # What was answered is there.
            alive = conversation.id in before or what == "create"
            assert (conversation.id in store._conversations) == (alive and what != "delete")
        kept = list(store._conversations.values())
        assert len(kept) == len(store) <= 3
        assert store.size == sum(one.size for one in kept) <= 8000
        for one in kept:
            assert one.size == Conversation({}, "").size + sum(item.size for item in one.by_id.values())
            assert one.snapshot().kept == one.kept
            assert all(store.item(item_id, one.key) is not None for item_id in one.by_id)


async def test_an_output_whose_call_goes_meanwhile_is_not_added() -> None:
    """Else nothing more could be made in the conversation."""
    client = Client(Place())
    call = {"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": "{}"}
    path = f"{CONVERSATIONS}/{(await client.send('POST', CONVERSATIONS, {'items': [call]})).json()['id']}"
    output = {"type": "function_call_output", "call_id": "c", "output": "42"}
    body = {"input": [output], "conversation": path.rpartition("/")[2]}
    task = asyncio.ensure_future(client.send("POST", PATH, body))
    await until(lambda: bool(client.engine.requests))
    assert (await client.send("DELETE", f"{path}/items/fc")).status == 200
    client.engine.deliver(0, "ok", "stop", stop_token_id=EOS)
    assert (await task).json()["conversation"] is None
    assert (await client.send("GET", f"{path}/items")).json()["data"] == []
