"""In-memory LRU store of responses, bounded in number and bytes, of which each API key has its share.

A response keeps the earlier ones of its conversation, which it cannot be continued without, even after they are evicted
themselves. Their memory counts once, however many responses continue them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from openai_bls.api.common.large_bodies import check_thread, let_go
from openai_bls.api.responses.items import Item
from openai_bls.api.responses.kept import ItemIndex, KeptItem, kept_items, kept_output, repeated
from openai_bls.api.responses.recording import Recording
from openai_bls.core.errors import InvalidRequestError, NotFoundError
from openai_bls.core.keys.shares import Shares

MAX_RESPONSES = 1000
MAX_BYTES = 64 * 1024 * 1024
# Bytes of a response beside its text.
_OVERHEAD = 1024
# Items that are decoded between two chances for other threads.
_LET_GO_ITEMS = 32


class _Part:
    """A part of a conversation that others may follow.

    Args:
        own: items of this part.
        previous: the part that it follows.
        size: bytes that count for it.
    """

    def __init__(self, own: tuple[KeptItem, ...], previous: _Part | None, size: int) -> None:
        self.own = own
        self.previous = previous
        self.size = size
        self.total_size: int = size + (0 if previous is None else previous.total_size)
        """Bytes, those of all parts before it included."""
        self.count: int = len(own) + (0 if previous is None else previous.count)
        """Number of items, those of all parts before it included."""
        self.by_id = {one.id: one for one in reversed(own)}
        """Items of this part by their ids; clients may give two items one id: the first has it."""
        self.holders = 0
        """Reference count: the store itself, and parts that follow it."""

    @property
    def kept(self) -> list[KeptItem]:
        """The conversation up to here."""
        parts: list[_Part] = []
        part: _Part | None = self
        while part is not None:
            parts.append(part)
            part = part.previous
        return [item for part in reversed(parts) for item in part.own]

    @property
    def items(self) -> list[Item]:
        """The same, decoded."""
        return _decoded(self.kept)


def _decoded(kept: Sequence[KeptItem]) -> list[Item]:
    items = []
    for at, one in enumerate(kept, 1):
        if not at % _LET_GO_ITEMS:
            let_go()
        items.append(one.item())
    return items


class Snapshot(_Part):
    """Items of a conversation at one moment, in the place of an earlier response.

    Its bytes count as the responses' that were made in it, though the conversation has them, too: it may be deleted
    first.

    Args:
        conversation_id: id of the conversation.
        own: items since `previous`.
        previous: the conversation at an earlier moment, since when items have only been added.
    """

    def __init__(self, conversation_id: str, own: tuple[KeptItem, ...], previous: Snapshot | None = None) -> None:
        super().__init__(own, previous, _OVERHEAD + sum(one.size for one in own))
        self.conversation_id = conversation_id


class Inputs(_Part):
    """Input items of a request.

    Args:
        items: the items, without earlier ones.
        previous: the response that the request continues, or the conversation as it is.
    """

    def __init__(self, items: Sequence[Item], previous: Stored | Snapshot | None) -> None:
        own = kept_items(items)
        super().__init__(own, previous, sum(one.size for one in own))
        self.previous: Stored | Snapshot | None = previous

    @property
    def repeated(self) -> int | None:
        """Index of the first item with the id of an earlier one."""
        return repeated(self.own) if len(self.by_id) < len(self.own) else None


class Stored(_Part):
    """A stored response with its input items.

    Args:
        response: the `response` object, complete, as JSON text.
        inputs: input items of its request, with what that continues.
        recording: recording of the response's events, if it was streamed in the background.
        included: values of `include` in the response's request.
        key: name of the API key that may see it.

    Raises:
        msgspec.ValidationError: the response, or an item of its output, has no id.
    """

    def __init__(
        self,
        response: bytes,
        inputs: Inputs,
        recording: Recording | None = None,
        included: Sequence[str] = (),
        key: str = "",
    ) -> None:
        self.id, output = kept_output(response)
        # The last event of the recording is still to come: it has the response once more.
        recorded = 0 if recording is None else recording.size + len(response)
        super().__init__(output, inputs, _OVERHEAD + len(response) + recorded + sum(one.size for one in output))
        self.response = response
        """JSON text."""
        self.recording = recording
        self.included = frozenset(included)
        self.key = key
        self.inputs = inputs


class ResponseStore:
    """LRU store of responses. Belongs to the event loop's thread; others may look things up.

    Args:
        max_responses: most responses that can be asked for.
        max_bytes: approximate limit on the bytes kept for them.
    """

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._shares = Shares(max_responses, max_bytes)
        self._responses: dict[str, Stored] = {}
        self._index: ItemIndex[_Part] = ItemIndex()

    def __len__(self) -> int:
        return len(self._responses)

    @property
    def size(self) -> int:
        """Bytes kept, about."""
        return self._shares.bytes

    def put(self, stored: Stored) -> bool:
        """Keep a response, and forget others if there is no more room; False if there can be none for it."""
        if stored.total_size > self._shares.room(stored.key):
            return False
        self._responses[stored.id] = stored
        self._shares.add(stored.key, stored.id)
        for part in (stored, stored.inputs):
            self._index.add(stored.key, part.by_id, part)
        self._hold(stored, stored.key)
        while (oldest := self._shares.excess()) is not None:
            self.delete(oldest)
        return True

    def check_room(self, inputs: Inputs, key: str, param: str) -> None:
        """Refuse a request whose response cannot be kept, however short the answer.

        Args:
            inputs: input items of the request, with what it continues.
            key: name of the API key.
            param: the field that asks for the response to be kept.

        Raises:
            InvalidRequestError: there is no room for it.
        """
        size, room = inputs.total_size + _OVERHEAD, self._shares.room(key)
        if size > room:
            raise InvalidRequestError(
                f"The response cannot be kept: with what it was made from it would have {size} bytes, and this API key "
                f"may have {room}.",
                param=param,
                code="storage_quota_exceeded",
            )

    def get(self, response_id: str, key: str = "") -> Stored | None:
        """The response of that id, if the API key `key` may see it; it counts as used."""
        stored = self._responses.get(response_id)
        if stored is None or stored.key != key:
            return None
        self._shares.use(response_id)
        return stored

    def item(self, item_id: str, key: str = "") -> KeptItem | None:
        """The item of that id, of the responses that the API key `key` can ask for."""
        return self._index.find(key, item_id)

    def delete(self, response_id: str) -> bool:
        """Forget a response; False if there is none of that id. Those that continue it go on."""
        stored = self._responses.pop(response_id, None)
        if stored is None:
            return False
        self._shares.remove(response_id)
        for part in (stored, stored.inputs):
            self._index.discard(stored.key, part.by_id, part)
        self._release(stored, stored.key)
        return True

    def _hold(self, part: _Part | None, key: str) -> None:
        while part is not None:
            part.holders += 1
            if part.holders > 1:
                return
            self._shares.charge(key, part.size)
            part = part.previous

    def _release(self, part: _Part | None, key: str) -> None:
        while part is not None:
            part.holders -= 1
            if part.holders:
                return
            self._shares.charge(key, -part.size)
            part = part.previous


def response_store(_application: object) -> ResponseStore:
    """Store of one application, for `Api.shared`."""
    return ResponseStore()


class Conversations(Protocol):
    """Store of conversations."""

    def snapshot(self, conversation_id: str, key: str, param: str) -> Snapshot:
        """The conversation of that id, as it is now; raises NotFoundError, which names `param`."""

    def item(self, item_id: str, key: str) -> KeptItem | None:
        """The item of that id; None if the API key has none."""


class References:
    """Stored items that one request refers to: each once, and no more bytes than it could have sent itself.

    On the event loop, much of them is a ThreadNeededError (see `check_thread`).

    Args:
        store: store with the items.
        max_bytes: most bytes of all items that are referred to.
        key: name of the request's API key.
        conversations: store with the items of conversations; None is none.
    """

    def __init__(
        self, store: ResponseStore, max_bytes: int, key: str = "", conversations: Conversations | None = None
    ) -> None:
        self.key = key
        self._store = store
        self._conversations = conversations
        self._max_bytes = max_bytes
        self._size = 0
        self._taken: set[str] = set()

    def response(self, response_id: str) -> Stored | None:
        """The response of that id; None if there is none for this API key."""
        found = self._store.get(response_id, self.key)
        if found is not None:
            check_thread(found.count, found.total_size)
        return found

    def conversation(self, conversation_id: str) -> Snapshot:
        """The conversation of that id, as it is now.

        Raises:
            NotFoundError: there is none for this API key.
        """
        if self._conversations is None:
            raise NotFoundError(f"Conversation with id '{conversation_id[:100]}' not found.", param="conversation")
        found = self._conversations.snapshot(conversation_id, self.key, "conversation")
        check_thread(found.count, found.total_size)
        return found

    def take(self, item_id: str, param: str) -> Item:
        """The item of that id, which `param` refers to.

        Raises:
            InvalidRequestError: there is none, it has been taken before, or it is one too many.
        """
        if item_id in self._taken:
            raise InvalidRequestError(f"Item with id '{item_id}' is referred to twice.", param=param)
        found = self._store.item(item_id, self.key)
        if found is None and self._conversations is not None:
            found = self._conversations.item(item_id, self.key)
        if found is None:
            raise InvalidRequestError(
                f"Item with id '{item_id}' not found: only the items of stored responses and conversations can be "
                "referred to.",
                param=param,
            )
        # The images of an item are as large as they were in a request.
        self._size += found.content_size
        if self._size > self._max_bytes:
            raise InvalidRequestError(
                f"The items that are referred to are larger than {self._max_bytes} bytes together.", param=param
            )
        self._taken.add(item_id)
        check_thread(len(self._taken), self._size)
        return found.item()
