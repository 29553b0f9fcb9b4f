"""Bodies of requests that come compressed (`Content-Encoding`), unpacked piece by piece within the bounds of a body."""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Sequence

from starlette.requests import Request
from starlette.types import Message, Receive

from openai_bls.core.errors import InvalidRequestError

Turn = Callable[[], Awaitable[None]]

_GZIP, _DEFLATE = "gzip", "deflate"
# RFC 9110, 8.4.1.3.
_NAMES = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": _DEFLATE}
# Bytes that are unpacked at once, in less than a millisecond.
_PIECE = 64 * 1024
# Bytes that may come for nothing: more of them, as no compressor writes them, could come for ever.
_FREE_BYTES = 64 * 1024
_GZIP_BITS, _RAW_BITS = 16 + zlib.MAX_WBITS, -zlib.MAX_WBITS


class ContentCodingError(InvalidRequestError):
    """A body in a content coding that is not taken; the answer says which are (RFC 9110, 12.5.3)."""

    def __init__(self, coding: str) -> None:
        super().__init__(
            f"The content encoding {coding[:60]!r} is not taken: send the body in gzip or deflate, or as it is.",
            code="unsupported_content_encoding",
        )
        self.status = 415

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the HTTP answer."""
        return {**super().headers, "Accept-Encoding": f"{_GZIP}, {_DEFLATE}"}


def unpacked(request: Request, turn: Turn) -> Request:
    """A request whose body is read as it was before it was compressed; the same one if it was not.

    Args:
        request: request as it came.
        turn: waits for a turn of the event loop.

    Raises:
        ContentCodingError: it was compressed otherwise than by gzip or deflate.
    """
    coding = _coding(request.headers.getlist("content-encoding"))
    return request if coding is None else Request(request.scope, Unpacked(request.receive, coding, turn))


def _coding(headers: Sequence[str]) -> str | None:
    named = [name for header in headers for part in header.split(",") if (name := part.strip().lower())]
    codings = [name for name in named if name != "identity"]
    if not codings:
        return None
    if len(codings) > 1 or codings[0] not in _NAMES:
        raise ContentCodingError(", ".join(codings))
    return _NAMES[codings[0]]


class Unpacked:
    """Receiver of a body, unpacked; whoever reads it bounds what comes of it.

    Args:
        receive: receiver of the body as it was sent.
        coding: `gzip` or `deflate`.
        turn: waits for a turn of the event loop. Each piece has one: a few bytes may become as many as a body may have.
    """

    def __init__(self, receive: Receive, coding: str, turn: Turn) -> None:
        self._receive = receive
        self._coding = coding
        self._turn = turn
        self._unpacker: zlib._Decompress | None = None
        self._packed = b""
        """Bytes that are still to be unpacked."""
        self._in_bytes = self._out_bytes = 0
        self._is_more = True
        """More of the body may come."""
        self._is_full = False
        """The unpacker may have more to give of what it has."""
        self._has_ended = False

    async def __call__(self) -> Message:
        """The next piece of the body; what comes behind it as it is."""
        while self._packed or self._is_full or self._is_more:
            if self._is_more and not (self._is_full or self._has_enough):
                message = await self._receive()
                if message["type"] != "http.request":
                    return message
                self._take(message)
                continue
            await self._turn()
            piece = self._unpack()
            if piece:
                return {"type": "http.request", "body": piece, "more_body": True}
        if self._has_ended:
            return await self._receive()
        if self._unpacker is not None and not self._unpacker.eof:
            raise self._damaged("is cut short")
        self._has_ended = True
        return {"type": "http.request", "body": b"", "more_body": False}

    @property
    def _has_enough(self) -> bool:
        """There is something to unpack; of `deflate` only the first two bytes tell the form."""
        return len(self._packed) > (self._coding == _DEFLATE and self._unpacker is None)

    def _take(self, message: Message) -> None:
        data = message.get("body", b"")
        self._packed += data
        self._in_bytes += len(data)
        self._is_more = message.get("more_body", False)
        if self._in_bytes > 2 * self._out_bytes + len(data) + _FREE_BYTES:
            raise self._damaged("unpacks to less than it has")

    def _unpack(self) -> bytes:
        if self._unpacker is None or self._unpacker.eof:
            if self._unpacker is not None and self._coding == _DEFLATE:
                raise self._damaged("goes on behind its end")
            self._unpacker = zlib.decompressobj(self._bits())
        try:
            piece = self._unpacker.decompress(self._packed, _PIECE)
        except zlib.error:
            raise self._damaged("is not in that form") from None
        self._packed = self._unpacker.unused_data if self._unpacker.eof else self._unpacker.unconsumed_tail
        self._is_full = len(piece) == _PIECE and not self._unpacker.eof
        self._out_bytes += len(piece)
        return piece

    def _bits(self) -> int:
        if self._coding == _GZIP:
            return _GZIP_BITS
        # By RFC 9110 it is in the form of zlib; many send the bare stream.
        head = int.from_bytes(self._packed[:2], "big")
        return zlib.MAX_WBITS if head % 31 == 0 and head >> 8 & 15 == zlib.DEFLATED else _RAW_BITS

    def _damaged(self, fault: str) -> InvalidRequestError:
        return InvalidRequestError(
            f"The request body {fault}: its content encoding is {self._coding!r}.", code="invalid_content_encoding"
        )
