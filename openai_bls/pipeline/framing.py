"""Counts of what the body of an HTTP message brings besides its content: small chunks, chunk extensions, trailers."""

from __future__ import annotations

MIN_CHUNK_BYTES = 64
"""Bytes of content for each chunk beyond those that are free."""

# Bytes of a chunk without extensions beyond its content: 16 hexadecimal digits and two line ends.
_CHUNK_FRAME_BYTES = 20


class Framing:
    """Counts of one body at a time.

    Args:
        free_chunks: chunks of a body, whatever their size; more of them if they are large.
        max_bytes: bytes of a body that are neither content nor plain chunk frames.
    """

    def __init__(self, free_chunks: int, max_bytes: int) -> None:
        self._free_chunks = free_chunks
        self._max_bytes = max_bytes
        self._plain_bytes = 0
        """Bytes of content and of plain chunk frames in the data that is being fed."""
        self.begin()

    def begin(self) -> None:
        """Begin with a new body."""
        self._framing_bytes = 0
        self._credit = self._free_chunks * MIN_CHUNK_BYTES
        """Bytes of content that pay for further chunks."""

    def feed(self) -> None:
        """Begin with new data, of which the parser tells next."""
        self._plain_bytes = 0

    def chunk(self) -> bool:
        """Count the beginning of a chunk; False if too many are too small."""
        self._plain_bytes += _CHUNK_FRAME_BYTES
        self._credit -= MIN_CHUNK_BYTES
        return self._credit >= 0

    def content(self, size: int) -> None:
        """Count a piece of content."""
        self._plain_bytes += size
        self._credit += size

    def fed(self, size: int) -> bool:
        """Count data within a body, after the parser has told of it; False if too much of it is framing."""
        self._framing_bytes = max(0, self._framing_bytes + size - self._plain_bytes)
        return self._framing_bytes <= self._max_bytes
