"""Base64 of images, lifted out of a request body before its JSON is decoded.

A decoder copies a text with the interpreter's lock held: 1 to 3 ms for a megabyte, in which the event loop stands still
even if a thread decodes. So a long string of base64 gives way to a short mark, and what is decoded is small. The mark
comes back as an image's URL, and the base64 goes to the decoder of images from where it lies.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from openai_bls.api.common.bodies import json_object
from openai_bls.api.common.large_bodies import is_large, let_go
from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.request import ValidRequest

T = TypeVar("T")
BodyT = TypeVar("BodyT")

SHORTEST_BYTES = 32 * 1024
"""Bytes of a string from which on it is lifted."""
# Looked through in a tenth of a millisecond.
_LET_GO_BYTES = 8 * SHORTEST_BYTES
_HEAD = re.compile(rb"(?:data:[^,]{0,200};base64,)?(?=[A-Za-z0-9+/]{64})", re.IGNORECASE)

# Of line ends and tabs, and of slashes by encoders of JSON that fear HTML.
_ESCAPES = (rb"\n", rb"\r", rb"\t", rb"\/")

PutBack = Callable[[ValidRequest], ValidRequest]
"""Gives the images of a request their base64 back."""


class _ElsewhereError(Exception):
    """A mark is in another place than an image's URL."""


class Lifted(Generic[BodyT]):
    """A body without the base64 that it came with.

    Args:
        body: the body, with a mark in the place of each string of base64.
        parts: base64 of each mark.
        whole: makes the body as it came; not called if nothing was lifted.
    """

    def __init__(self, body: BodyT, parts: Mapping[str, memoryview], whole: Callable[[], BodyT]) -> None:
        self.body = body
        self._parts = parts
        self._whole = whole

    @classmethod
    def nothing(cls, body: BodyT) -> Lifted[BodyT]:
        """A body from which nothing was lifted."""
        return cls(body, {}, lambda: body)

    @property
    def large(self) -> bool:
        """True if `whole` and `parse` take a while."""
        return bool(self._parts)

    def whole(self) -> BodyT:
        """The body as it came."""
        return self._whole() if self._parts else self.body

    def parse(self, parse: Callable[[BodyT, PutBack], T]) -> T:
        """Result of `parse`, which calls the function that it is given with the request that it makes.

        Bodies that hold base64 elsewhere too, or are refused, are parsed as they came: no mark is ever seen.
        """
        if self._parts:
            try:
                return parse(self.body, self._put_back)
            except (_ElsewhereError, InvalidRequestError):
                pass
        return parse(self.whole(), lambda request: request)

    def _put_back(self, request: ValidRequest) -> ValidRequest:
        images, used = [], 0
        for image in request.images:
            head, _, mark = image.url.rpartition(",")
            if head and mark in self._parts:
                used += 1
                image = msgspec.structs.replace(image, url=f"{head},", base64=self._parts[mark])  # noqa: PLW2901
            images.append(image)
        if used < len(self._parts):
            raise _ElsewhereError
        return msgspec.structs.replace(request, images=tuple(images))


def lifted(text: bytes) -> tuple[bytes, dict[str, memoryview]]:
    """JSON text without its long strings of base64: the text with marks, and the base64 of each.

    A mark takes the place of what stands between two quotation marks, and has none itself, nor an escape but those of
    line ends, tabs and slashes: whatever the text means, and whether it is JSON at all, stays the same. Lets other
    threads run again and again.
    """
    parts: dict[str, memoryview] = {}
    if not is_large(text):
        return text, parts
    pieces: list[bytes] = []
    view = memoryview(text)
    done = quote = 0
    for start in range(0, len(text), SHORTEST_BYTES):
        if start and not start % _LET_GO_BYTES:
            let_go()
        end = start + SHORTEST_BYTES
        first = text.find(b'"', start, end)
        if first < 0:
            continue
        if first - quote > SHORTEST_BYTES and (at := _base64_start(text, quote + 1, first)):
            mark = secrets.token_hex(16)
            parts[mark] = view[at:first]
            pieces += [text[done:at], mark.encode()]
            done = first
        quote = text.rfind(b'"', first, end)
    if not parts:
        return text, parts
    return b"".join([*pieces, text[done:]]), parts


def put_back(text: bytes, parts: Mapping[str, memoryview]) -> bytes | None:
    """A text with its base64 in the places of the marks; None if one of them is not in it."""
    pieces: list[bytes] = []
    for mark, part in parts.items():
        before, found, text = text.partition(mark.encode())
        if not found:
            return None
        pieces += [before, bytes(part)]
    return b"".join([*pieces, text])


def _has_others(piece: bytes) -> bool:
    """True if a text has other escapes than those that stand in base64 in lines."""
    for escape in _ESCAPES:
        piece = piece.replace(escape, b"")
    return b"\\" in piece


def _base64_start(text: bytes, start: int, end: int) -> int:
    """Place of the base64 in a string of JSON; 0 if it is none."""
    found = _HEAD.match(text, start, min(end, start + 512))
    if found is None:
        return 0
    for at in range(start, end, SHORTEST_BYTES):
        if at > start and not (at - start) % _LET_GO_BYTES:
            let_go()
        piece = text[at : min(end, at + SHORTEST_BYTES)]
        if piece.endswith(b"\\"):
            # An escape may go on in the next.
            piece += text[at + SHORTEST_BYTES : min(end, at + SHORTEST_BYTES + 1)]
        # Whether it is base64 to its end the decoder of images sees, which knows these escapes; here it must be no
        # other text in JSON's terms.
        if (b"\\" in piece and _has_others(piece)) or not piece.isascii():
            return 0
    return found.end()


def lifted_object(body: bytes) -> Lifted[dict[str, Any]]:
    """The object that a request body is, without its long strings of base64.

    Raises:
        InvalidRequestError: it is none.
    """
    text, parts = lifted(body)
    return Lifted(json_object(text), parts, lambda: json_object(body))


def lifted_body(body: bytes) -> Lifted[bytes]:
    """A request body without its long strings of base64."""
    text, parts = lifted(body)
    return Lifted(text, parts, lambda: body)
