"""In-memory LRU store of the conversations of /v1/conversations, bounded in number and bytes.

Each conversation is of one API key, and each key has its share of the room. A request takes a `Snapshot` of a
conversation, which later changes leave as it is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence

from openai_bls.api.common.encoding import new_id
from openai_bls.api.responses.kept import ItemIndex, KeptItem, repeated
from openai_bls.api.responses.store import MAX_BYTES, Snapshot
from openai_bls.core.errors import InvalidRequestError, NotFoundError
from openai_bls.core.keys.shares import Shares

MAX_CONVERSATIONS = 1000
MAX_ITEMS = 10_000
"""Items of one conversation; the output of a response may be above."""
# Bytes of a conversation beside its items and metadata.
_OVERHEAD = 1024


class Conversation:
    """A conversation. Changed by the store alone.

    Args:
        metadata: texts that the client keeps with it.
        key: name of the API key that may see it.
    """

    def __init__(self, metadata: dict[str, str], key: str) -> None:
        self.id = new_id("conv_")
        self.created_at = int(time.time())
        self.metadata = metadata
        self.key = key
        self.by_id: dict[str, KeptItem] = {}
        """The items by their ids, in their order."""
        self.size = _OVERHEAD + _metadata_size(metadata)
        """Bytes."""
        self._calls: dict[str, int] = {}
        """Number of the calls of each id."""
        # Other threads take snapshots.
        self._lock = threading.Lock()
        self._latest: Snapshot | None = None
        self._added: list[KeptItem] = []
        """Items since the latest snapshot."""

    @property
    def kept(self) -> list[KeptItem]:
        """The items, in their order."""
        return list(self.by_id.values())

    def snapshot(self) -> Snapshot:
        """The items as they are now. What earlier snapshots have is not copied, unless an item was removed."""
        with self._lock:
            if self._latest is None:
                self._latest = Snapshot(self.id, tuple(self.by_id.values()))
            elif self._added:
                self._latest = Snapshot(self.id, tuple(self._added), self._latest)
            self._added = []
            return self._latest

    def body(self) -> dict[str, object]:
        """The `conversation` object."""
        return {"id": self.id, "object": "conversation", "created_at": self.created_at, "metadata": self.metadata}

    def extend(self, items: Sequence[KeptItem]) -> None:
        """Add items, whose ids it does not have."""
        with self._lock:
            self.by_id.update((one.id, one) for one in items)
            self._added += items
        self.size += sum(one.size for one in items)
        for one in items:
            for call_id in one.calls:
                self._calls[call_id] = self._calls.get(call_id, 0) + 1

    def remove(self, item_id: str) -> bool:
        """Remove an item; False if there is none of that id."""
        with self._lock:
            removed = self.by_id.pop(item_id, None)
            if removed is None:
                return False
            self._latest = None
        self.size -= removed.size
        for call_id in removed.calls:
            self._calls[call_id] -= 1
            if not self._calls[call_id]:
                del self._calls[call_id]
        return True

    def without_call(self, items: Sequence[KeptItem]) -> int | None:
        """Index of the first of further items that is the output of a call which is not there before it."""
        further: set[str] = set()
        for at, one in enumerate(items):
            if one.answers is not None and one.answers not in self._calls and one.answers not in further:
                return at
            further.update(one.calls)
        return None


class ConversationStore:
    """LRU store of conversations. Changed in the event loop's thread; others may look things up.

    Args:
        max_conversations: most conversations that are kept.
        max_bytes: approximate limit on the bytes of all their items.
        max_items: most items of one conversation.
    """

    def __init__(
        self,
        max_conversations: int = MAX_CONVERSATIONS,
        max_bytes: int = MAX_BYTES,
        max_items: int = MAX_ITEMS,
    ) -> None:
        self._max_items = max_items
        self._shares = Shares(max_conversations, max_bytes)
        self._conversations: dict[str, Conversation] = {}
        self._index: ItemIndex[Conversation] = ItemIndex()

    def __len__(self) -> int:
        return len(self._conversations)

    @property
    def size(self) -> int:
        """Bytes of all conversations, about."""
        return self._shares.bytes

    def create(self, items: Sequence[KeptItem], metadata: dict[str, str], key: str) -> Conversation:
        """A new conversation.

        Raises:
            InvalidRequestError: the items cannot be added to it (see `add`).
        """
        made = Conversation(metadata, key)
        self._check(made, items)
        self._conversations[made.id] = made
        self._shares.add(key, made.id)
        self._shares.charge(key, made.size)
        self._extend(made, items)
        return made

    def get(self, conversation_id: str, key: str, param: str | None = None) -> Conversation:
        """The conversation of that id, which counts as used.

        Raises:
            NotFoundError: there is none that the API key `key` may see.
        """
        found = self._conversations.get(conversation_id)
        if found is None or found.key != key:
            raise NotFoundError(f"Conversation with id '{conversation_id[:100]}' not found.", param=param)
        self._shares.use(conversation_id)
        return found

    def snapshot(self, conversation_id: str, key: str, param: str) -> Snapshot:
        """The conversation of that id, as it is now; see `get`."""
        return self.get(conversation_id, key, param).snapshot()

    def item(self, item_id: str, key: str) -> KeptItem | None:
        """The item of that id, of the conversations of the API key `key`; None if there is none."""
        return self._index.find(key, item_id)

    def update(self, conversation: Conversation, metadata: dict[str, str]) -> None:
        """Replace the metadata of a conversation.

        Raises:
            InvalidRequestError: there is no room for them.
        """
        more = _metadata_size(metadata) - _metadata_size(conversation.metadata)
        self._check_room(conversation, more, "metadata")
        conversation.metadata = metadata
        conversation.size += more
        if conversation.id in self._conversations:
            self._shares.charge(conversation.key, more)
            self._evict()

    def add(self, conversation: Conversation, items: Sequence[KeptItem]) -> None:
        """Add items to a conversation.

        Raises:
            InvalidRequestError: there is no room for them, it has an item of the same id, or it has not the call whose
                output one of them is.
        """
        self._check(conversation, items)
        # It may have been deleted meanwhile.
        if conversation.id in self._conversations:
            self._shares.use(conversation.id)
            self._extend(conversation, items)

    def check_input(self, conversation_id: str, key: str, inputs: Sequence[KeptItem]) -> None:
        """Refuse the input of a response that cannot be added to the conversation, whatever the answer.

        Raises:
            NotFoundError: there is no such conversation.
            InvalidRequestError: there is no room for the input, or two of its items have one id.
        """
        at = repeated(inputs)
        if at is not None:
            raise InvalidRequestError(
                f"Two items have the id '{inputs[at].id[:100]}': in a conversation each has its own.",
                param=f"input[{at}].id",
            )
        self._check_size(self.get(conversation_id, key, "conversation"), inputs, "input")

    def answered(self, conversation_id: str, key: str, inputs: Sequence[KeptItem], output: Sequence[KeptItem]) -> bool:
        """Add what a response was made from and its output; an id that has come in meanwhile is replaced.

        False if they cannot be added: the conversation is gone, or there is no room any more, or the call whose output
        is among the inputs has been removed.
        """
        found = self._conversations.get(conversation_id)
        if found is None or found.key != key or len(found.by_id) + len(inputs) > self._max_items:
            return False
        items: list[KeptItem] = []
        further: set[str] = set()
        for one in (*inputs, *output):
            kept = one.renamed(new_id("item_")) if one.id in found.by_id or one.id in further else one
            further.add(kept.id)
            items.append(kept)
        if found.without_call(items) is not None:
            return False
        if found.size + sum(one.size for one in items) > self._shares.room(key):
            return False
        self._shares.use(conversation_id)
        self._extend(found, items)
        return True

    def remove_item(self, conversation: Conversation, item_id: str) -> bool:
        """Remove an item; False if there is none of that id."""
        before = conversation.size
        if not conversation.remove(item_id):
            return False
        if conversation.id in self._conversations:
            self._shares.charge(conversation.key, conversation.size - before)
            self._index.discard(conversation.key, (item_id,), conversation)
        return True

    def delete(self, conversation: Conversation) -> None:
        """Forget a conversation; the responses that were made in it stay."""
        if self._conversations.pop(conversation.id, None) is None:
            return
        self._shares.remove(conversation.id)
        self._shares.charge(conversation.key, -conversation.size)
        self._index.discard(conversation.key, conversation.by_id, conversation)

    def _extend(self, conversation: Conversation, items: Sequence[KeptItem]) -> None:
        before = conversation.size
        conversation.extend(items)
        self._shares.charge(conversation.key, conversation.size - before)
        self._index.add(conversation.key, (one.id for one in items), conversation)
        self._evict()

    def _evict(self) -> None:
        while (oldest := self._shares.excess()) is not None:
            self.delete(self._conversations[oldest])

    def _check(self, conversation: Conversation, items: Sequence[KeptItem]) -> None:
        """Refuse items that cannot be added."""
        seen: set[str] = set()
        for at, one in enumerate(items):
            if one.id in conversation.by_id or one.id in seen:
                raise InvalidRequestError(
                    f"Item with id '{one.id[:100]}' is in the conversation already.", param=f"items[{at}].id"
                )
            seen.add(one.id)
        lost = conversation.without_call(items)
        if lost is not None:
            field = "id" if items[lost].answers == items[lost].id else "call_id"
            raise InvalidRequestError(
                f"No tool call found for the output with {field} '{str(items[lost].answers)[:100]}'.",
                param=f"items[{lost}].{field}",
            )
        self._check_size(conversation, items, "items")

    def _check_size(self, conversation: Conversation, items: Sequence[KeptItem], param: str) -> None:
        count = len(conversation.by_id) + len(items)
        if count > self._max_items:
            raise InvalidRequestError(
                f"The conversation would have {count} items; it may have {self._max_items}.",
                param=param,
                code="too_many_items",
            )
        self._check_room(conversation, sum(one.size for one in items), param)

    def _check_room(self, conversation: Conversation, more: int, param: str) -> None:
        size, room = conversation.size + more, self._shares.room(conversation.key)
        if more >= 0 and size > room:
            raise InvalidRequestError(
                f"The conversation would have {size} bytes; conversations of this API key may have {room}.",
                param=param,
                code="storage_quota_exceeded",
            )


def _metadata_size(metadata: dict[str, str]) -> int:
    return sum(len(text.encode()) for text in _flat(metadata))


def _flat(metadata: dict[str, str]) -> Iterable[str]:
    return (text for pair in metadata.items() for text in pair)


def conversation_store(_application: object) -> ConversationStore:
    """Store of one application, for `Api.shared`."""
    return ConversationStore()
