"""Answer of a host of images, read in slices, with bounds for its bytes and for the pieces that they come in."""

from __future__ import annotations

import httptools

from openai_bls.core.errors import OverloadedError
from openai_bls.pipeline.framing import Framing
from openai_bls.pipeline.joining import joined
from openai_bls.pipeline.media.budget import MediaLease
from openai_bls.pipeline.media.errors import ImageCode, ImageError
from openai_bls.pipeline.slices import Turns, has_few_lines, slice_end

READ_BYTES = 64 * 1024
"""Bytes that are read at once."""
OK = 200
DOWNLOAD: ImageCode = "failed_to_download_image"
MAX_HEAD_BYTES = 96 * 1024
"""Bytes that come before the end of the head, of answers that announce another one too."""
MAX_FIELDS = 256
"""Headers and trailers."""
MAX_FRAMING_BYTES = 32 * 1024
"""Bytes of a body that are none of its content: sizes of chunks beyond their share, chunk extensions, trailers."""
MAX_INTERIM = 8
"""Answers with a status of 1xx before the real one."""
FREE_CHUNKS = 4096
"""Chunks of a body, whatever their size; more of them if they are large."""

_SWITCHING = 101


class _EndedError(Exception):
    """Something follows the answer."""


class ImageAnswer:
    """Answer as httptools parses it; only the body of a 200 is kept.

    Args:
        max_bytes: most bytes of the body.
        lease: part of the budget for images that they are taken from.
    """

    def __init__(self, max_bytes: int, lease: MediaLease) -> None:
        self._max_bytes = max_bytes
        self._lease = lease
        self._parser = httptools.HttpResponseParser(self)
        self._head_bytes = 0
        self._fields = 0
        self._interim = 0
        self._framing = Framing(FREE_CHUNKS, MAX_FRAMING_BYTES)
        self._pieces: list[bytes] = []
        self._size = 0
        self._delimited = False
        self._fault: Exception | None = None
        self.status = 0
        """0 until the head has ended."""
        self.location = ""
        self.ended = False

    async def body(self) -> bytes:
        """The body; of one that the end of the connection ends, whatever came."""
        return await joined(self._pieces)

    async def feed(self, data: bytes, turns: Turns) -> None:
        """Read on.

        Args:
            data: next bytes of the host; none are the end of the connection.
            turns: queue for what comes in many pieces.

        Raises:
            ImageError: it is more than it may be, or compressed.
            OverloadedError: there is no room for it.
            EOFError: the answer is cut short.
            httptools.HttpParserError: it is no HTTP.
        """
        if not data:
            if self.status == 0 or self._delimited:
                raise EOFError
            self.ended = True
        elif has_few_lines(data):
            self._parse(data)
        else:
            at = 0
            while at < len(data) and not self.ended and self.status in (0, OK):
                await turns.wait()
                end = slice_end(data, at)
                self._parse(memoryview(data)[at:end])
                at = end

    def _parse(self, data: bytes | memoryview) -> None:
        was_in_head = self.status == 0
        if was_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                raise _unfit("the head of the answer is too long")
        self._framing.feed()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise _unfit(f"its host answers {_SWITCHING}") from None
        except httptools.HttpParserCallbackError:
            if self._fault is not None:
                raise self._fault from None
            if not self.ended:
                raise
        if not was_in_head and not self._framing.fed(len(data)):
            raise _unfit("chunk extensions or trailers without end")

    # Parser callbacks

    def on_message_begin(self) -> None:
        """An answer begins."""
        if self.ended:
            raise _EndedError

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer."""
        self._fields += 1
        if self._fields > MAX_FIELDS:
            self._refuse(_unfit(f"the answer has more than {MAX_FIELDS} headers"))
        if self.status:
            return
        key = name.lower()
        if key == b"location":
            self.location = value.decode("latin-1")
        elif key == b"content-length":
            self._delimited = True
            if not value.isdigit() or int(value) > self._max_bytes:
                self._refuse(self._too_large())
        elif key == b"transfer-encoding":
            self._delimited = True
        elif key == b"content-encoding" and value.strip().lower() != b"identity":
            self._refuse(_unfit("it comes compressed, which was not asked for"))

    def on_headers_complete(self) -> None:
        """The head has ended."""
        status = self._parser.get_status_code()
        if status >= OK or status == _SWITCHING:
            self.status = status
            return
        # Another answer follows (RFC 9110, 15.2).
        self.location, self._delimited = "", False
        self._interim += 1
        if self._interim > MAX_INTERIM:
            self._refuse(_unfit(f"its host answers {status} again and again"))

    def on_chunk_header(self) -> None:
        """A chunk begins."""
        if not self._framing.chunk():
            self._refuse(_unfit("it comes in chunks that are too small"))

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        size = len(piece)
        self._framing.content(size)
        if self.status != OK:
            return
        self._size += size
        if self._size > self._max_bytes:
            self._refuse(self._too_large())
        try:
            self._lease.take(size)
        except OverloadedError as error:
            self._refuse(error)
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        """The body has ended, unless only another answer was announced."""
        self.ended = self.status != 0

    def _too_large(self) -> ImageError:
        return ImageError("image_file_too_large", f"has more than {self._max_bytes} bytes (max_image_bytes)")

    def _refuse(self, error: Exception) -> None:
        self._fault = error
        raise error


def _unfit(why: str) -> ImageError:
    return ImageError(DOWNLOAD, f"cannot be fetched: {why}")
