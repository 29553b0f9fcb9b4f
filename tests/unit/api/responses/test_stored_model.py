"""Random requests of two API keys about conversations and stored responses, against a plain model of both stores."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from openai.types.conversations import ConversationItemList

from openai_bls.api.responses.conversations.store import ConversationStore
from openai_bls.api.responses.store import ResponseStore
from tests.unit.api.responses.responses_support import PATH, Client, Place, Reply, checked
from tests.unit.api.responses.stored_model import (
    MAX_CONVERSATIONS,
    MAX_ITEMS,
    MAX_RESPONSES,
    Conversation,
    Item,
    Model,
    RefusedError,
    Turn,
)
from tests.unit.core_support import EOS, Bench, until

# A failure would be shrunk for minutes.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
CONVERSATIONS = "/v1/conversations"
KEYS = ("a", "b")
CHOSEN = ("i0", "i1", "i2")
"""Ids of items that clients choose."""


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text("a: a\nb: b\n", encoding="utf-8")
    return str(path)


def text_of(item: dict[str, Any]) -> str:
    if item["type"] == "message":
        return str(item["content"][0]["text"])
    return str(item["output"] if item["type"] == "function_call_output" else item["arguments"])


class World:
    """The server and its model, which are asked the same."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any], keys_file: str) -> None:
        self.draw = draw
        place = Place(Bench(api_keys_file=keys_file), ResponseStore(max_responses=MAX_RESPONSES))
        place.conversations = ConversationStore(max_conversations=MAX_CONVERSATIONS, max_items=MAX_ITEMS)
        self.client = Client(place)
        self.model = Model()
        self.numbers = itertools.count()
        # Those that are gone are asked for, too.
        self.conversation_ids = ["conv_none"]
        self.response_ids = ["resp_none"]
        self.item_ids = list(CHOSEN)

    def pick(self, values: Any) -> Any:
        return self.draw(st.sampled_from(values))

    def conversation_id(self, key: str) -> str:
        """Id of a conversation: most often of one that there is, of the key."""
        mine = [one.id for one in self.model.conversations if one.key == key]
        return str(self.pick([*mine * 4, self.pick(self.conversation_ids)]))

    def response_id(self, key: str) -> str:
        mine = [one.id for one in self.model.responses if one.key == key]
        return str(self.pick([*mine * 4, self.pick(self.response_ids)]))

    def item_id(self) -> str:
        return str(self.pick([*CHOSEN, *CHOSEN, self.pick(self.item_ids)]))

    def items(self) -> list[Any]:
        """Items to be sent; a text refers to another by its id."""
        return [self.item() for _ in range(self.pick([1, 1, 2, 3]))]

    def item(self) -> Any:
        kind = self.pick(["message"] * 4 + ["function_call", "function_call_output", "item_reference"])
        if kind == "item_reference":
            return self.item_id()
        call_id = self.pick(["c0", "c1"]) if kind != "message" else None
        text = f"t{next(self.numbers)}"
        if kind == "function_call":
            text = f'{{"n":"{text}"}}'
        return Item(self.pick([None, None, *CHOSEN]), kind, text, call_id)

    async def ask(self, method: str, path: str, body: Any = b"", *, key: str, query: str = "") -> Reply:
        return await self.client.send(method, path, body, key=key, query=query)

    def learned(self, items: list[Item], listed: list[dict[str, Any]]) -> None:
        """What is listed is what the model has; ids that the server has chosen are noted."""
        assert [(item.kind, item.text) for item in items] == [(item["type"], text_of(item)) for item in listed]
        for item, found in zip(items, listed, strict=True):
            assert item.id in (None, found["id"])
            item.id = found["id"]
            if item.id not in self.item_ids:
                self.item_ids.append(item.id)

    # Conversations

    async def create(self, key: str) -> None:
        await self.created(key, self.items() if self.draw(st.booleans()) else [])

    async def begun(self) -> None:
        """Give each key a conversation, with items of the ids that clients choose."""
        for key in KEYS:
            message = Item(CHOSEN[0], "message", f"t{next(self.numbers)}")
            await self.created(key, [message, Item(CHOSEN[1], "function_call", '{"n":"0"}', "c0")])

    async def created(self, key: str, given: list[Any]) -> None:
        reply = await self.ask("POST", CONVERSATIONS, {"items": sent(given), "metadata": {"m": "1"}}, key=key)
        try:
            items = self.model.referred(given, key, "items")
            self.model.check_new([], items)
        except RefusedError as refused:
            return same(reply, refused)
        made = Conversation(answer(reply)["id"], key, [], {"m": "1"})
        self.conversation_ids.append(made.id)
        self.model.extend(made, items)
        self.model.create(made)
        await self.list_all(made)

    async def add(self, key: str) -> None:
        given, conversation_id = self.items(), self.conversation_id(key)
        reply = await self.ask("POST", f"{CONVERSATIONS}/{conversation_id}/items", {"items": sent(given)}, key=key)
        try:
            items = self.model.referred(given, key, "items")
            found = self.model.conversation(conversation_id, key)
            self.model.check_new(found.items, items)
        except RefusedError as refused:
            return same(reply, refused)
        self.learned(items, answer(reply)["data"])
        self.model.extend(found, items)

    async def conversation(self, key: str) -> None:
        """One request about a conversation as a whole."""
        conversation_id = self.conversation_id(key)
        method, metadata = self.pick(
            [("GET", None), ("POST", {"m": "2"}), ("POST", {"m": "3"})] * 3 + [("DELETE", None)]
        )
        body = {"metadata": metadata} if metadata else b""
        reply = await self.ask(method, f"{CONVERSATIONS}/{conversation_id}", body, key=key)
        try:
            found = self.model.conversation(conversation_id, key)
        except RefusedError as refused:
            return same(reply, refused)
        if method == "DELETE":
            self.model.conversations.remove(found)
            assert answer(reply)["deleted"]
        else:
            found.metadata = metadata or found.metadata
            assert answer(reply)["metadata"] == found.metadata

    async def list_items(self, key: str) -> None:
        conversation_id, after = self.conversation_id(key), self.pick([None, None, self.item_id()])
        limit, order = self.pick([1, 2, 20]), self.pick(["asc", "desc"])
        query = f"limit={limit}&order={order}" + (f"&after={after}" if after else "")
        reply = await self.ask("GET", f"{CONVERSATIONS}/{conversation_id}/items", query=query, key=key)
        try:
            items = self.model.conversation(conversation_id, key).items
        except RefusedError as refused:
            return same(reply, refused)
        self.check_page(reply, items, after, limit, order)

    def check_page(self, reply: Reply, items: list[Item], after: str | None, limit: int, order: str) -> None:
        items = items if order == "asc" else items[::-1]
        start = 0
        if after is not None:
            start = next((at for at, item in enumerate(items, 1) if item.id == after), 0)
            if not start:
                return same(reply, RefusedError(400, "after"))
        body = answer(reply)
        checked(ConversationItemList, body)
        self.learned(items[start : start + limit], body["data"])
        ends = [item["id"] for item in (*body["data"][:1], *body["data"][-1:])] or ["", ""]
        assert [body["first_id"], body["last_id"]] == ends
        assert body["has_more"] == (start + limit < len(items))

    async def one_item(self, key: str) -> None:
        conversation_id, item_id, method = self.conversation_id(key), self.item_id(), "GET"
        if self.draw(st.booleans()):
            method = "DELETE"
        reply = await self.ask(method, f"{CONVERSATIONS}/{conversation_id}/items/{item_id}", key=key)
        try:
            found = self.model.conversation(conversation_id, key)
            items = [item for item in found.items if item.id == item_id]
            if not items:
                raise RefusedError(404, None)
        except RefusedError as refused:
            return same(reply, refused)
        if method == "GET":
            self.learned(items, [answer(reply)])
        else:
            assert answer(reply)["id"] == conversation_id
            found.items.remove(items[0])

    async def list_all(self, conversation: Conversation) -> None:
        path = f"{CONVERSATIONS}/{conversation.id}/items"
        reply = await self.ask("GET", path, query="limit=100&order=asc", key=conversation.key)
        self.learned(conversation.items, answer(reply)["data"])

    # Responses

    def asked_for(self, key: str, *places: str) -> tuple[list[Any], dict[str, Any]]:
        """The items of a request, and its body."""
        given = self.items() if self.draw(st.booleans()) else [Item(None, "message", f"t{next(self.numbers)}")]
        # Calls alone would be no prompt.
        body: dict[str, Any] = {"instructions": "go", "input": sent(given)}
        where = self.pick(places)
        if where == "conversation":
            body["conversation"] = self.conversation_id(key)
        elif where == "previous":
            body["previous_response_id"] = self.response_id(key)
        return given, body

    async def look(self, key: str) -> None:
        """A request that keeps nothing of what it reads."""
        kind = self.pick(["input_tokens", "render", "compact"])
        places = ["none", "previous"] if kind == "compact" else ["none", "conversation", "previous"]
        given, body = self.asked_for(key, *places)
        before = len(self.client.engine.requests)
        task = asyncio.ensure_future(self.ask("POST", f"{PATH}/{kind}", body, key=key))
        await until(lambda: len(self.client.engine.requests) > before or task.done())
        ids = body.get("conversation"), body.get("previous_response_id")
        try:
            self.model.begin(key, given, *ids, store=False, keeps=False)
        except RefusedError as refused:
            assert len(self.client.engine.requests) == before
            return same(await task, refused)
        if kind == "compact":
            self.client.engine.deliver(before, "all of it", "stop", stop_token_id=EOS)
        answer(await task)

    async def respond(self, key: str) -> None:
        given, body = self.asked_for(key, "none", "conversation", "conversation", "conversation", "previous")
        conversation_id, previous_id = body.get("conversation"), body.get("previous_response_id")
        mode, store = self.pick(["whole", "stream", "background"]), self.pick([None, True, False])
        store = None if mode == "background" else store
        body |= {"store": store, **({} if mode == "whole" else {mode: True})}
        before = len(self.client.engine.requests)
        task = asyncio.ensure_future(self.ask("POST", PATH, body, key=key))
        await until(lambda: len(self.client.engine.requests) > before or task.done())
        try:
            turn = self.model.begin(key, given, conversation_id, previous_id, store)
            turn.background = mode == "background"
        except RefusedError as refused:
            assert len(self.client.engine.requests) == before
            return same(await task, refused)
        assert not task.done(), task.result().text
        said_texts = [text for message in self.client.place.messages[1:] if (text := said(message)) is not None]
        # What the model said in two answers in a row is one message to it.
        prompt = "\n".join(said_texts).split("\n") if said_texts else []
        assert prompt == [item.text for item in (*turn.before, *turn.inputs) if item.kind != "function_call"]
        for _ in range(self.draw(st.integers(0, 2))):
            await self.pick([self.conversation, self.add, self.one_item, self.create])(key)
        if turn.background and self.pick([False, False, True]):
            return await self.cancelled(answer(await task)["id"], turn)
        text = f"t{next(self.numbers)}"
        self.client.engine.deliver(before, text, "stop", stop_token_id=EOS)
        response = await self.ended(mode, await task, key)
        output = [Item(item["id"], "message", text) for item in response["output"]]
        self.item_ids += [item.id for item in output if item.id is not None]
        assert [text_of(item) for item in response["output"]] == [text]
        self.response_ids.append(response["id"])
        kept = self.model.end(turn, response["id"], output)
        assert response["conversation"] == ({"id": conversation_id} if conversation_id and kept else None)
        assert response["store"] is (store is not False)
        if turn.conversation in self.model.conversations:
            assert turn.conversation is not None
            await self.list_all(self.model.conversation(turn.conversation.id, key))

    async def cancelled(self, response_id: str, turn: Turn) -> None:
        """A response that is cancelled is kept as it has become, and not in its conversation."""
        other = next(key for key in KEYS if key != turn.key)
        assert (await self.ask("POST", f"{PATH}/{response_id}/cancel", key=other)).status == 404
        found = answer(await self.ask("POST", f"{PATH}/{response_id}/cancel", key=turn.key))
        assert (found["status"], found["output"]) == ("cancelled", [])
        self.response_ids.append(response_id)
        self.model.keep(turn, response_id, [])
        if turn.conversation in self.model.conversations:
            assert turn.conversation is not None
            await self.list_all(self.model.conversation(turn.conversation.id, turn.key))

    async def ended(self, mode: str, reply: Reply, key: str) -> dict[str, Any]:
        """A response at its end."""
        if mode == "stream":
            assert reply.status == 200, reply.text
            found: dict[str, Any] = reply.events[-1]["response"]
        else:
            found = answer(reply)
        while found["status"] in ("queued", "in_progress"):
            await asyncio.sleep(0)
            found = answer(await self.ask("GET", f"{PATH}/{found['id']}", key=key))
        return found

    async def response(self, key: str) -> None:
        """One request about a stored response."""
        response_id = self.response_id(key)
        method, tail = self.pick(
            [("GET", ""), ("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")]
        )
        limit, order = self.pick([1, 2, 20]), self.pick(["asc", "desc"])
        query = f"limit={limit}&order={order}" if tail == "/input_items" else ""
        reply = await self.ask(method, f"{PATH}/{response_id}{tail}", query=query, key=key)
        found = self.model.response(response_id, key)
        if found is None:
            same(reply, RefusedError(404, None))
        elif method == "POST" and not found.background:
            same(reply, RefusedError(400, None))
        elif tail == "/input_items":
            self.check_page(reply, [*found.before, *found.inputs], None, limit, order)
        elif method == "DELETE":
            self.model.responses.remove(found)
            assert answer(reply)["deleted"]
        else:
            self.learned(found.output, answer(reply)["output"])

    async def step(self) -> None:
        asked = [self.create, self.add, self.conversation, self.list_items, self.one_item, self.response, self.look]
        await self.pick([*asked, *[self.respond] * 6])(self.pick(KEYS))
        place = self.client.place
        assert len(place.conversations) == len(self.model.conversations)
        assert len(place.store) == len(self.model.responses)

    async def emptied(self) -> None:
        """Nothing is left of what is deleted, and each is of its key."""
        place = self.client.place
        kept: list[tuple[str, Any]] = [(CONVERSATIONS, one) for one in self.model.conversations]
        kept += [(PATH, one) for one in self.model.responses]
        for path, one in kept:
            other = next(key for key in KEYS if key != one.key)
            assert (await self.ask("DELETE", f"{path}/{one.id}", key=other)).status == 404
            assert (await self.ask("DELETE", f"{path}/{one.id}", key=one.key)).status == 200
        for store in (place.conversations, place.store):
            assert (store.size, len(store), store._index._holders) == (0, 0, {})


def sent(items: list[Any]) -> list[dict[str, Any]]:
    """Items as a client sends them."""
    return [_sent(item) if isinstance(item, Item) else {"type": "item_reference", "id": item} for item in items]


def _sent(item: Item) -> dict[str, Any]:
    body: dict[str, Any] = {"type": item.kind} | ({} if item.id is None else {"id": item.id})
    if item.kind == "message":
        return body | {"role": "user", "content": item.text}
    if item.kind == "function_call":
        return body | {"call_id": item.call_id, "name": "f", "arguments": item.text}
    return body | {"call_id": item.call_id, "output": item.text}


def said(message: dict[str, Any]) -> str | None:
    """The text of a message to the model; None if it only calls."""
    content = message["content"]
    if isinstance(content, list):
        content = "".join(part["text"] for part in content)
    return None if message["role"] == "assistant" and not content else content


def same(reply: Reply, refused: RefusedError) -> None:
    assert (reply.status, reply.error["param"], reply.error["code"]) == refused.told, reply.text


def answer(reply: Reply) -> Any:
    assert reply.status == 200, reply.text
    return reply.json()


@settings(deadline=None, max_examples=50, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_both_stores_are_as_their_model(keys_file: str, data: st.DataObject) -> None:
    async def main() -> None:
        world = World(data.draw, keys_file)
        await world.begun()
        for _ in range(data.draw(st.integers(10, 40))):
            await world.step()
        await world.emptied()

    asyncio.run(main())
