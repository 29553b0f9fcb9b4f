"""Items as the stores keep them: each encoded once, decoded when it is asked for, and found by its id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from openai_bls.api.common.encoding import encode
from openai_bls.api.common.large_bodies import let_go
from openai_bls.api.responses.items import Item

ITEM_OVERHEAD = 512
"""Bytes of an item beside its text: its objects, and its places in the indexes."""
# Characters of an image's URL from which on it is kept apart.
_LARGE_URL = 4096
# In the place of such a URL, and of one that begins so itself.
_KEPT = "kept:"
# Items that are encoded between two chances for other threads.
_LET_GO_ITEMS = 32

_decode = msgspec.json.Decoder().decode


class _Named(msgspec.Struct):
    """Fields of an output item that a store reads."""

    id: str
    type: str = ""
    call_id: str | None = None


class _Texts(msgspec.Struct):
    id: str
    output: list[msgspec.Raw]


class _Response(msgspec.Struct):
    """Fields of a response that a store reads."""

    id: str
    output: list[_Named]


_decode_response = msgspec.json.Decoder(_Response).decode
_decode_texts = msgspec.json.Decoder(_Texts).decode


class KeptItem(msgspec.Struct, frozen=True, gc=False):
    """An item of a conversation, or of a response."""

    id: str
    text: bytes | msgspec.Raw
    """JSON text, without large images."""
    size: int
    """Bytes that count for it."""
    images: tuple[str, ...] = ()
    """URLs of large images: encoding and decoding them would take as long as their whole request."""
    calls: tuple[str, ...] = ()
    """Ids by which the output of the call that it is may name it."""
    answers: str | None = None
    """Id of the call whose output it is."""

    @property
    def content_size(self) -> int:
        """Bytes of the item in a request."""
        return memoryview(self.text).nbytes + sum(map(len, self.images))

    def item(self) -> Item:
        """The item, decoded."""
        item: Item = _decode(self.text)
        if self.images:
            item = _with_urls(item, lambda url: self.images[int(url[len(_KEPT) :])] if url.startswith(_KEPT) else url)
        return item

    def renamed(self, item_id: str) -> KeptItem:
        """The same item under another id."""
        return _kept({**_decode(self.text), "id": item_id}, self.images)


def kept_items(items: Sequence[Item]) -> tuple[KeptItem, ...]:
    """Items, encoded."""
    kept = []
    for at, item in enumerate(items, 1):
        if not at % _LET_GO_ITEMS:
            let_go()
        images: list[str] = []
        kept.append(_kept(_without_images(item, images), tuple(images)))
    return tuple(kept)


def kept_output(response: bytes) -> tuple[str, tuple[KeptItem, ...]]:
    """The id and the output items of a response.

    Args:
        response: JSON text, in which the texts of the items stay.

    Raises:
        msgspec.ValidationError: the response, or an item, has no id.
    """
    named = _decode_response(response)
    texts = _decode_texts(response).output
    items = (
        KeptItem(
            item.id,
            text,
            # Its text is counted as the response's.
            ITEM_OVERHEAD,
            calls=_calls(item.type, item.id, item.call_id),
        )
        for item, text in zip(named.output, texts, strict=True)
    )
    return named.id, tuple(items)


def is_response(text: bytes, response_id: str) -> bool:
    """True for the JSON text of a response of that id, whose items have ids: one that can be stored."""
    try:
        return kept_output(text)[0] == response_id
    except msgspec.ValidationError:
        return False


def changed(response: bytes, **fields: object) -> bytes:
    """A response, as JSON text, with other values of some fields."""
    return encode({**_decode(response), **fields})


def copied(items: Iterable[KeptItem]) -> tuple[KeptItem, ...]:
    """Output items with texts of their own, which do not keep the response's."""
    return tuple(
        msgspec.structs.replace(one, text=bytes(one.text), size=ITEM_OVERHEAD + one.content_size) for one in items
    )


def repeated(items: Sequence[KeptItem]) -> int | None:
    """Index of the first item with the id of an earlier one."""
    seen: set[str] = set()
    for at, one in enumerate(items):
        if one.id in seen:
            return at
        seen.add(one.id)
    return None


def _kept(item: Item, images: tuple[str, ...]) -> KeptItem:
    text = encode(item)
    size = ITEM_OVERHEAD + len(text) + sum(map(len, images))
    calls = _calls(item.get("type"), item["id"], item.get("call_id"))
    return KeptItem(item["id"], text, size, images, calls, _answers(item))


def _calls(kind: object, item_id: str, call_id: object) -> tuple[str, ...]:
    if not isinstance(kind, str) or not kind.endswith("_call") or not isinstance(call_id, str):
        return ()
    # Its output may name either.
    return (call_id, item_id) if kind == "local_shell_call" else (call_id,)


# Those that are read: outputs of tools that a server runs are left out of the prompt.
_OUTPUTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output", "tool_search_output")


def _answers(item: Item) -> str | None:
    if item.get("type") not in _OUTPUTS or item.get("execution") == "server":
        return None
    return str(item["id"] if item.get("call_id") is None else item["call_id"])


def _without_images(item: Item, images: list[str]) -> Item:
    """An item whose large images are moved to `images`."""

    def moved(url: str) -> str:
        if len(url) < _LARGE_URL and not url.startswith(_KEPT):
            return url
        images.append(url)
        return f"{_KEPT}{len(images) - 1}"

    return _with_urls(item, moved)


def _with_urls(item: Item, change: Callable[[str], str]) -> Item:
    """An item with other URLs in the place of its images'."""
    for field in ("content", "output"):
        parts = item.get(field)
        if isinstance(parts, list) and any(map(_is_image, parts)):
            changed = [{**part, "image_url": change(part["image_url"])} if _is_image(part) else part for part in parts]
            item = {**item, field: changed}
    return item


def _is_image(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "input_image" and isinstance(part.get("image_url"), str)


class Holder(Protocol):
    """A conversation, or a part of one."""

    @property
    def by_id(self) -> Mapping[str, KeptItem]:
        """Items of the response by their ids."""


HolderT = TypeVar("HolderT", bound=Holder)


class ItemIndex(Generic[HolderT]):
    """Holders of items by the API key and the id of an item, which clients may choose: several may have one id.

    Belongs to the event loop's thread; others may look things up.
    """

    def __init__(self) -> None:
        self._holders: dict[str, dict[str, HolderT | tuple[HolderT, ...]]] = {}

    def add(self, key: str, item_ids: Iterable[str], holder: HolderT) -> None:
        """Add items of a holder that it does not have here."""
        known = self._holders.setdefault(key, {})
        for item_id in item_ids:
            before = known.setdefault(item_id, holder)
            if before is not holder:
                known[item_id] = (*before, holder) if isinstance(before, tuple) else (before, holder)

    def discard(self, key: str, item_ids: Iterable[str], holder: HolderT) -> None:
        """Remove items of a holder."""
        known = self._holders.get(key, {})
        for item_id in item_ids:
            found = known.get(item_id)
            if isinstance(found, tuple):
                left = tuple(one for one in found if one is not holder)
                known[item_id] = left if len(left) > 1 else left[0]
            elif found is holder:
                del known[item_id]
        if not known:
            self._holders.pop(key, None)

    def find(self, key: str, item_id: str) -> KeptItem | None:
        """The item of that id, of the holder that was added last; None if there is none."""
        found = self._holders.get(key, {}).get(item_id)
        if isinstance(found, tuple):
            found = found[-1]
        # The event loop may just have removed it.
        return None if found is None else found.by_id.get(item_id)
