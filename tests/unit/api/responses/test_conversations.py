"""/v1/conversations, and responses that are made in one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.conversations import Conversation, ConversationDeletedResource, ConversationItemList

from openai_bls.api.responses.conversations.store import ConversationStore
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
    checked(Conversation, reply.json())
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
    await until(lambda: len(store.get(conversation_id, "").entries) == 4)
    listed = (await client.send("GET", path, query="order=asc")).json()["data"]
    assert texts(listed) == ["one", "two", "three", "four"]


def test_a_response_that_fails_adds_nothing() -> None:
    place = Place()
    conversation_id = made(place)
    place.create({"conversation": conversation_id, "stream": True}, ["half"], "error", error="out of memory")
    assert place.conversations.get(conversation_id, "").entries == ()


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


@given(
    st.lists(st.tuples(st.sampled_from(["create", "add", "remove", "delete"]), st.integers(0, 5), st.integers(0, 9)))
)
def test_the_store_is_bounded_and_counts_right(steps: list[tuple[str, int, int]]) -> None:
    store = ConversationStore(max_conversations=3, max_bytes=3000)
    held = [store.create([], {}, "k")]
    for what, which, number in steps:
        conversation = held[which % len(held)]
        items = [{"id": f"i{number}", "text": "x" * 100 * number}]
        if what == "create":
            held.append(store.create(items, {}, "k"))
        elif what == "add":
            try:
                store.add(conversation, items)
            except InvalidRequestError:
                assert f"i{number}" in conversation.item_ids
        elif what == "remove" and conversation.id in store._conversations:
            store.remove_item(conversation, f"i{number}")
        elif what == "delete":
            store.delete(conversation)
        kept = list(store._conversations.values())
        assert len(kept) == len(store) <= 3
        assert store.size == sum(one.size for one in kept) <= 3000
        owned = set(store._owners.values())
        assert {owner.id for owner in owned} <= {one.id for one in kept}
