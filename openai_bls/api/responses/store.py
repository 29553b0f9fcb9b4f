"""In-memory LRU store of responses, bounded in number and bytes.

A response keeps the earlier ones of its conversation, which it cannot be continued without, even after they are evicted
themselves. Their memory counts once, however many responses continue them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from openai_bls.api.common.encoding import encode
from openai_bls.api.responses.items import Item
from openai_bls.api.responses.recording import Recording
from openai_bls.api.responses.tools.items import HOSTED_ITEMS
from openai_bls.core.errors import InvalidRequestError, NotFoundError

MAX_RESPONSES = 1000
MAX_BYTES = 64 * 1024 * 1024
# Bytes of a response beside its text.
_OVERHEAD = 1024
# Characters of an image's URL from which on it is kept apart.
_LARGE_URL = 4096
# In the place of such a URL. No client's URL begins so: an image with it would be refused.
_KEPT = "kept:"


class _Listed(msgspec.Struct):
    """The output items of a stored response."""

    output: list[msgspec.Raw]


class _Item(msgspec.Struct):
    id: str


class _Named(msgspec.Struct):
    """The ids of a stored response."""

    id: str
    output: list[_Item]


_decode = msgspec.json.Decoder().decode
_decode_inputs = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_response = msgspec.json.Decoder(_Listed).decode
_decode_ids = msgspec.json.Decoder(_Named).decode


def is_response(text: bytes, response_id: str) -> bool:
    """True for the JSON text of a response of that id, whose items have ids: one that can be stored."""
    try:
        return _decode_ids(text).id == response_id
    except msgspec.ValidationError:
        return False


class Snapshot:
    """Items of a conversation at one moment, in the place of an earlier response: a chain ends with it.

    Args:
        conversation_id: id of the conversation.
        texts: JSON texts of the items.
    """

    previous: None = None

    def __init__(self, conversation_id: str, texts: Sequence[msgspec.Raw]) -> None:
        self.conversation_id = conversation_id
        self._texts = texts
        self.size = sum(memoryview(text).nbytes for text in texts)
        """Bytes, which count as this response's though the conversation has them, too: it may be deleted first."""
        self.holders = 0
        """Reference count, by responses that were made from it."""

    @property
    def items(self) -> list[Item]:
        """The items, decoded."""
        return [_decode(text) for text in self._texts]

    @property
    def own_items(self) -> list[Item]:
        """The same, under the name that a stored response has for its own."""
        return self.items


def _images_size(item: Item) -> int:
    """Characters of the URLs of an item's images."""
    if item.get("type") in HOSTED_ITEMS:
        return 0
    parts = [part for field in ("content", "output") if isinstance(item.get(field), list) for part in item[field]]
    return sum(len(part["image_url"] or "") for part in parts if part["type"] == "input_image")


class Stored:
    """A stored response with its input items.

    Args:
        response: the `response` object, complete, as JSON text.
        inputs: input items of the response's request, without earlier ones.
        previous: the response that it continues, or the conversation as it was.
        recording: recording of the response's events, if it was streamed in the background.
        included: values of `include` in the response's request.
        key: name of the API key that may see it.

    Raises:
        msgspec.ValidationError: the response, or an item of its output, has no id.
    """

    def __init__(
        self,
        response: bytes,
        inputs: list[Item],
        previous: Stored | Snapshot | None,
        recording: Recording | None = None,
        included: Sequence[str] = (),
        key: str = "",
    ) -> None:
        ids = _decode_ids(response)
        self.id = ids.id
        self.response = response
        """JSON text."""
        # Texts of data: URIs stay as they are: encoding and decoding them would take as long as their whole request.
        self._images: list[str] = []
        self._inputs = encode([_without_images(item, self._images) for item in inputs])
        self.previous = previous
        self.recording = recording
        self.included = frozenset(included)
        self.key = key
        self.item_ids: list[str] = [*(item["id"] for item in inputs), *(item.id for item in ids.output)]
        self.size = (
            len(self.response)
            + len(self._inputs)
            + sum(map(len, self._images))
            + _OVERHEAD
            + (recording.size if recording else 0)
        )
        """Bytes."""
        self.holders = 0
        """Reference count: the store itself, and responses that continue it."""

    @property
    def texts(self) -> list[msgspec.Raw]:
        """JSON texts of the items of this response's own request, and of its output, in the order of `item_ids`; what
        is in them of images is for `restored`."""
        return _decode_inputs(self._inputs) + _decode_response(self.response).output

    @property
    def own_items(self) -> list[Item]:
        """The items of `texts`."""
        return [self.restored(_decode(text)) for text in self.texts]

    def restored(self, item: Item) -> Item:
        """An item of `texts` with its images."""
        return _with_urls(item, lambda url: self._images[int(url[len(_KEPT) :])] if url.startswith(_KEPT) else url)

    @property
    def input_items(self) -> list[Item]:
        """Input items, those of earlier responses included."""
        inputs = [self.restored(item) for item in _decode(self._inputs)]
        return (self.previous.items if self.previous is not None else []) + inputs

    @property
    def items(self) -> list[Item]:
        """The conversation up to here."""
        chain: list[Stored | Snapshot] = []
        node: Stored | Snapshot | None = self
        while node is not None:
            chain.append(node)
            node = node.previous
        return [item for node in reversed(chain) for item in node.own_items]


def _without_images(item: Item, images: list[str]) -> Item:
    """An item whose large images are moved to `images`."""

    def moved(url: str) -> str:
        if len(url) < _LARGE_URL:
            return url
        images.append(url)
        return f"{_KEPT}{len(images) - 1}"

    return _with_urls(item, moved)


def _with_urls(item: Item, change: Callable[[str], str]) -> Item:
    """An item with other URLs in the place of its images'; steps of hosted tools stay as they came."""
    if item.get("type") in HOSTED_ITEMS:
        return item
    for field in ("content", "output"):
        parts = item.get(field)
        if isinstance(parts, list) and any(part["type"] == "input_image" for part in parts):
            changed = [
                {**part, "image_url": change(part["image_url"])}
                if part["type"] == "input_image" and part["image_url"] is not None
                else part
                for part in parts
            ]
            item = {**item, field: changed}
    return item


class ResponseStore:
    """LRU store of responses. Belongs to the event loop's thread; others may look things up.

    Args:
        max_responses: most responses that can be asked for.
        max_bytes: approximate limit on the bytes of text kept for them.
    """

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._responses: OrderedDict[str, Stored] = OrderedDict()
        self._owners: dict[tuple[str, str], Stored] = {}
        """Responses by the name of the API key and the id of an item, which clients may choose."""
        self.size = 0
        """Bytes of text kept, about."""

    def __len__(self) -> int:
        return len(self._responses)

    def put(self, stored: Stored) -> None:
        """Keep a response, and forget others if there is no more room."""
        self._responses[stored.id] = stored
        for item_id in stored.item_ids:
            self._owners[stored.key, item_id] = stored
        self._hold(stored)
        while self._responses and (len(self._responses) > self._max_responses or self.size > self._max_bytes):
            self.delete(next(iter(self._responses)))

    def get(self, response_id: str, key: str = "") -> Stored | None:
        """The response of that id, if the API key `key` may see it; it counts as used."""
        stored = self._responses.get(response_id)
        if stored is None or stored.key != key:
            return None
        # A large body is parsed in a thread, and the event loop may just have forgotten this one.
        with suppress(KeyError):
            self._responses.move_to_end(response_id)
        return stored

    def owner(self, item_id: str, key: str = "") -> Stored | None:
        """The response that the item of that id belongs to, of those that the API key `key` can ask for."""
        return self._owners.get((key, item_id))

    def delete(self, response_id: str) -> bool:
        """Forget a response; False if there is none of that id. Those that continue it go on."""
        stored = self._responses.pop(response_id, None)
        if stored is None:
            return False
        for item_id in stored.item_ids:
            if self._owners.get((stored.key, item_id)) is stored:
                del self._owners[stored.key, item_id]
        self._release(stored)
        return True

    def _hold(self, stored: Stored | Snapshot | None) -> None:
        while stored is not None:
            stored.holders += 1
            if stored.holders > 1:
                return
            self.size += stored.size
            stored = stored.previous

    def _release(self, stored: Stored | Snapshot | None) -> None:
        while stored is not None:
            stored.holders -= 1
            if stored.holders:
                return
            self.size -= stored.size
            stored = stored.previous


def response_store(_application: object) -> ResponseStore:
    """Store of one application, for `Api.shared`."""
    return ResponseStore()


class Conversations(Protocol):
    """Store of conversations."""

    def snapshot(self, conversation_id: str, key: str, param: str) -> Snapshot:
        """The conversation of that id, as it is now; raises NotFoundError, which names `param`."""

    def item(self, item_id: str, key: str) -> msgspec.Raw | None:
        """JSON text of the item of that id; None if the API key has none."""


class References:
    """Stored items that one request refers to: each once, and no more bytes than it could have sent itself.

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
        self._left = max_bytes
        self._taken: set[str] = set()
        # Their owners' items, by the owner's id: each is looked through once.
        self._texts: dict[str, dict[str, msgspec.Raw]] = {}

    def response(self, response_id: str) -> Stored | None:
        """The response of that id; None if there is none for this API key."""
        return self._store.get(response_id, self.key)

    def conversation(self, conversation_id: str) -> Snapshot:
        """The conversation of that id, as it is now.

        Raises:
            NotFoundError: there is none for this API key.
        """
        if self._conversations is None:
            raise NotFoundError(f"Conversation with id '{conversation_id[:100]}' not found.", param="conversation")
        return self._conversations.snapshot(conversation_id, self.key, "conversation")

    def take(self, item_id: str, param: str) -> Item:
        """The item of that id, which `param` refers to.

        Raises:
            InvalidRequestError: there is none, it has been taken before, or it is one too many.
        """
        if item_id in self._taken:
            raise InvalidRequestError(f"Item with id '{item_id}' is referred to twice.", param=param)
        owner = self._store.owner(item_id, self.key)
        text = self._text(item_id, owner)
        if text is None:
            raise InvalidRequestError(
                f"Item with id '{item_id}' not found: only the items of stored responses and conversations can be "
                "referred to.",
                param=param,
            )
        item: Item = _decode(text)
        self._left -= memoryview(text).nbytes
        if owner is not None:
            item = owner.restored(item)
            # The images of an item are as large as they were in a request.
            self._left -= _images_size(item)
        if self._left < 0:
            raise InvalidRequestError(
                f"The items that are referred to are larger than {self._max_bytes} bytes together.", param=param
            )
        self._taken.add(item_id)
        return item

    def _text(self, item_id: str, owner: Stored | None) -> msgspec.Raw | None:
        """JSON text of the item of that id, of a response (`owner`) or of a conversation."""
        if owner is None:
            return None if self._conversations is None else self._conversations.item(item_id, self.key)
        texts = self._texts.get(owner.id)
        if texts is None:
            # Clients may give two items one id: the first has it.
            texts = dict(zip(reversed(owner.item_ids), reversed(owner.texts), strict=True))
            self._texts[owner.id] = texts
        return texts[item_id]
