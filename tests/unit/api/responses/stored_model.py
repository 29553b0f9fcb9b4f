"""Plain model of conversations and stored responses: lists, searched from end to end."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

MAX_CONVERSATIONS = 4
MAX_RESPONSES = 4
MAX_ITEMS = 8


class RefusedError(Exception):
    """What a request is refused with."""

    def __init__(self, status: int, param: str | None, code: str | None = None) -> None:
        super().__init__(status, param, code)
        self.told = (status, param, code)


@dataclass(eq=False)
class Item:
    """An item in one place; its id is None until the server is known to have chosen it."""

    id: str | None
    kind: str
    text: str
    call_id: str | None = None
    added: int = 0

    def copy(self) -> Item:
        return Item(self.id, self.kind, self.text, self.call_id)


@dataclass(eq=False)
class Conversation:
    id: str
    key: str
    items: list[Item]
    metadata: dict[str, str]


@dataclass(eq=False)
class Response:
    id: str
    key: str
    before: list[Item]
    """Items of what it continues."""
    inputs: list[Item]
    output: list[Item]
    background: bool


@dataclass
class Turn:
    """A response that is being made."""

    key: str
    before: list[Item]
    inputs: list[Item]
    conversation: Conversation | None
    store: bool | None
    background: bool = False


@dataclass
class Model:
    """Both stores; the least recently used stand first."""

    conversations: list[Conversation] = field(default_factory=list)
    responses: list[Response] = field(default_factory=list)
    _clock: Any = field(default_factory=itertools.count)

    # Conversations

    def conversation(self, conversation_id: str, key: str, param: str | None = None) -> Conversation:
        found = [one for one in self.conversations if (one.id, one.key) == (conversation_id, key)]
        if not found:
            raise RefusedError(404, param)
        _touch(self.conversations, found[0])
        return found[0]

    def check_new(self, old: list[Item], items: list[Item]) -> None:
        ids = [item.id for item in old]
        for at, item in enumerate(items):
            if item.id is not None and item.id in ids:
                raise RefusedError(400, f"items[{at}].id")
            ids.append(item.id)
        _check_calls(old, items, "items", "items")
        if len(old) + len(items) > MAX_ITEMS:
            raise RefusedError(400, "items", "too_many_items")

    def create(self, made: Conversation) -> None:
        self.conversations.append(made)
        self.extend(made, [])
        _evict(self.conversations, MAX_CONVERSATIONS)

    def extend(self, conversation: Conversation, items: list[Item]) -> None:
        for item in items:
            item.added = next(self._clock)
        conversation.items += items

    # Responses

    def response(self, response_id: str, key: str) -> Response | None:
        found = [one for one in self.responses if (one.id, one.key) == (response_id, key)]
        if found:
            _touch(self.responses, found[0])
        return found[0] if found else None

    def referred(self, items: list[Any], key: str, field: str) -> list[Item]:
        """Items, of which texts are ids of others."""
        found: list[Item] = []
        taken: set[str] = set()
        for at, item in enumerate(items):
            if isinstance(item, Item):
                found.append(item.copy())
                continue
            own = self._find(item, key)
            if item in taken or own is None:
                raise RefusedError(400, f"{field}[{at}].id")
            taken.add(item)
            found.append(own.copy())
        return found

    def _find(self, item_id: str, key: str) -> Item | None:
        for places in (
            [[*one.inputs, *one.output] for one in self.responses if one.key == key],
            [one.items for one in self.conversations if one.key == key],
        ):
            # Of several places the last that it came to, of one response the first.
            firsts = [next((item for item in place if item.id == item_id), None) for place in places]
            found = [item for item in firsts if item is not None]
            if found:
                return max(found, key=lambda item: item.added)
        return None

    def begin(
        self,
        key: str,
        given: list[Any],
        conversation_id: str | None,
        previous_id: str | None,
        store: bool | None,
        *,
        keeps: bool = True,
    ) -> Turn:
        """A response, or with `keeps` false something that only reads what one would read."""
        conversation, before, param = None, list[Item](), ""
        if conversation_id is not None:
            conversation = self.conversation(conversation_id, key, "conversation")
            before, param = list(conversation.items), "conversation"
        elif previous_id is not None:
            previous = self.response(previous_id, key)
            if previous is None:
                raise RefusedError(400, "previous_response_id", "previous_response_not_found")
            before, param = [*previous.before, *previous.inputs, *previous.output], "previous_response_id"
        inputs = self.referred(given, key, "input")
        _check_calls([], before, None, param)
        _check_calls(before, inputs, "input", "input")
        if conversation is not None and keeps:
            ids: list[str] = []
            for at, item in enumerate(inputs):
                if item.id is not None and item.id in ids:
                    raise RefusedError(400, f"input[{at}].id")
                ids += [] if item.id is None else [item.id]
            if len(before) + len(inputs) > MAX_ITEMS:
                raise RefusedError(400, "input", "too_many_items")
        return Turn(key, before, inputs, conversation, store)

    def end(self, turn: Turn, response_id: str, output: list[Item]) -> bool:
        """False if the conversation cannot take it."""
        kept = True
        conversation = turn.conversation
        if conversation is not None:
            kept = conversation in self.conversations and len(conversation.items) + len(turn.inputs) <= MAX_ITEMS
            try:
                _check_calls(conversation.items, turn.inputs, None, "")
            except RefusedError:
                kept = False
        if conversation is not None and kept:
            _touch(self.conversations, conversation)
            known = {item.id for item in conversation.items}
            added = [item.copy() for item in (*turn.inputs, *output)]
            for item in added:
                item.id = None if item.id in known else item.id
            self.extend(conversation, added)
        if turn.store is not False:
            self.keep(turn, response_id, output)
        return kept

    def keep(self, turn: Turn, response_id: str, output: list[Item]) -> None:
        inputs = [item.copy() for item in turn.inputs]
        made = Response(response_id, turn.key, turn.before, inputs, output, turn.background)
        for item in (*inputs, *output):
            item.added = next(self._clock)
        self.responses.append(made)
        _evict(self.responses, MAX_RESPONSES)


def _check_calls(old: list[Item], items: list[Item], field: str | None, param: str) -> None:
    calls = {item.call_id for item in old if item.kind == "function_call"}
    for at, item in enumerate(items):
        if item.kind == "function_call_output" and item.call_id not in calls:
            raise RefusedError(400, param if field is None else f"{field}[{at}].call_id")
        if item.kind == "function_call":
            calls.add(item.call_id)


def _touch(entries: list[Any], entry: Any) -> None:
    entries.remove(entry)
    entries.append(entry)


def _evict(entries: list[Any], most: int) -> None:
    """The key that has most loses its oldest."""
    while len(entries) > most:
        counts = {one.key: sum(other.key == one.key for other in entries) for one in entries}
        entries.remove(next(one for one in entries if counts[one.key] == max(counts.values())))
