"""In-memory LRU store of the conversations of /v1/conversations, bounded in number and bytes, each for its API key.

A conversation is a list of items, as JSON text. A request takes a `Snapshot` of it, which later changes leave as it is.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from openai_bls.api.common.encoding import encode, new_id
from openai_bls.api.responses.items import Item
from openai_bls.api.responses.store import MAX_BYTES, Snapshot
from openai_bls.core.errors import InvalidRequestError, NotFoundError

MAX_CONVERSATIONS = 1000
# Bytes of a conversation, or an item, beside its text.
_OVERHEAD = 256

_decode = msgspec.json.Decoder().decode


class Conversation:
    """A conversation.

    Args:
        items: items that it begins with, checked.
        metadata: texts that the client keeps with it.
        key: name of the API key that may see it.
    """

    def __init__(self, items: Sequence[Item], metadata: dict[str, str], key: str) -> None:
        self.id = new_id("conv_")
        self.created_at = int(time.time())
        self.metadata = metadata
        self.key = key
        self.entries: tuple[tuple[str, msgspec.Raw], ...] = ()
        """Id and JSON text of each item. Replaced as a whole: another thread may be reading it."""
        self.size = _OVERHEAD
        self.extend(items)

    @property
    def item_ids(self) -> list[str]:
        """Ids of the items, in their order."""
        return [item_id for item_id, _ in self.entries]

    @property
    def texts(self) -> list[msgspec.Raw]:
        """JSON texts of the items, in the same order."""
        return [text for _, text in self.entries]

    @property
    def items(self) -> list[Item]:
        """The items, decoded."""
        return [_decode(text) for text in self.texts]

    def snapshot(self) -> Snapshot:
        """The items as they are now."""
        return Snapshot(self.id, self.texts)

    def body(self) -> dict[str, object]:
        """The `conversation` object."""
        return {"id": self.id, "object": "conversation", "created_at": self.created_at, "metadata": self.metadata}

    def extend(self, items: Sequence[Item]) -> None:
        """Add items, whose ids it does not have."""
        added = tuple((str(item["id"]), msgspec.Raw(encode(item))) for item in items)
        self.entries = (*self.entries, *added)
        self._measure()

    def remove(self, item_id: str) -> bool:
        """Remove an item; False if there is none of that id."""
        left = tuple(entry for entry in self.entries if entry[0] != item_id)
        found = len(left) < len(self.entries)
        self.entries = left
        self._measure()
        return found

    def _measure(self) -> None:
        self.size = _OVERHEAD + sum(memoryview(text).nbytes + _OVERHEAD for _, text in self.entries)


class ConversationStore:
    """LRU store of conversations. Changed in the event loop's thread; others may look things up.

    Args:
        max_conversations: most conversations that are kept.
        max_bytes: approximate limit on the bytes of all their items.
    """

    def __init__(self, max_conversations: int = MAX_CONVERSATIONS, max_bytes: int = MAX_BYTES) -> None:
        self._max_conversations = max_conversations
        self._max_bytes = max_bytes
        self._conversations: OrderedDict[str, Conversation] = OrderedDict()
        self._owners: dict[tuple[str, str], Conversation] = {}
        """Conversations by the name of the API key and the id of an item."""
        self.size = 0
        """Bytes of all items, about."""

    def __len__(self) -> int:
        return len(self._conversations)

    def create(self, items: Sequence[Item], metadata: dict[str, str], key: str) -> Conversation:
        """A new conversation.

        Raises:
            InvalidRequestError: two items have one id.
        """
        _check_ids([], items)
        made = Conversation(items, metadata, key)
        self._conversations[made.id] = made
        self._own(made, made.item_ids)
        self.size += made.size
        self._evict()
        return made

    def get(self, conversation_id: str, key: str, param: str | None = None) -> Conversation:
        """The conversation of that id, which counts as used.

        Raises:
            NotFoundError: there is none that the API key `key` may see.
        """
        found = self._conversations.get(conversation_id)
        if found is None or found.key != key:
            raise NotFoundError(f"Conversation with id '{conversation_id[:100]}' not found.", param=param)
        # The event loop may just have forgotten this one.
        with suppress(KeyError):
            self._conversations.move_to_end(conversation_id)
        return found

    def snapshot(self, conversation_id: str, key: str, param: str) -> Snapshot:
        """The conversation of that id, as it is now; see `get`."""
        return self.get(conversation_id, key, param).snapshot()

    def item(self, item_id: str, key: str) -> msgspec.Raw | None:
        """JSON text of the item of that id, of the conversations of the API key `key`; None if there is none."""
        owner = self._owners.get((key, item_id))
        return None if owner is None else dict(owner.entries).get(item_id)

    def add(self, conversation: Conversation, items: Sequence[Item]) -> None:
        """Add items to a conversation.

        Raises:
            InvalidRequestError: it has an item of the same id.
        """
        _check_ids(conversation.item_ids, items)
        if conversation.id not in self._conversations:
            # Deleted, or forgotten, while a response was made.
            return
        self._conversations.move_to_end(conversation.id)
        self.size -= conversation.size
        conversation.extend(items)
        self.size += conversation.size
        self._own(conversation, [item["id"] for item in items])
        self._evict()

    def answered(self, conversation_id: str, key: str, items: Sequence[Item]) -> None:
        """Add what a response was made from and its output; an id that has come in meanwhile is replaced.

        Nothing happens where the conversation is gone.
        """
        found = self._conversations.get(conversation_id)
        if found is None or found.key != key:
            return
        known = set(found.item_ids)
        self.add(found, [{**item, "id": new_id("item_")} if item["id"] in known else item for item in items])

    def remove_item(self, conversation: Conversation, item_id: str) -> bool:
        """Remove an item; False if there is none of that id."""
        self.size -= conversation.size
        found = conversation.remove(item_id)
        self.size += conversation.size
        if self._owners.get((conversation.key, item_id)) is conversation:
            del self._owners[conversation.key, item_id]
        return found

    def delete(self, conversation: Conversation) -> None:
        """Forget a conversation; the responses that were made in it stay."""
        if self._conversations.pop(conversation.id, None) is None:
            return
        self.size -= conversation.size
        for item_id in conversation.item_ids:
            if self._owners.get((conversation.key, item_id)) is conversation:
                del self._owners[conversation.key, item_id]

    def _own(self, conversation: Conversation, item_ids: Sequence[str]) -> None:
        for item_id in item_ids:
            self._owners[conversation.key, item_id] = conversation

    def _evict(self) -> None:
        while self._conversations and (
            len(self._conversations) > self._max_conversations or self.size > self._max_bytes
        ):
            self.delete(next(iter(self._conversations.values())))


def _check_ids(known: Sequence[str], items: Sequence[Item]) -> None:
    seen = set(known)
    for at, item in enumerate(items):
        if item["id"] in seen:
            raise InvalidRequestError(
                f"Item with id '{item['id'][:100]}' is in the conversation already.", param=f"items[{at}].id"
            )
        seen.add(item["id"])


def conversation_store(_application: object) -> ConversationStore:
    """Store of one application, for `Api.shared`."""
    return ConversationStore()
