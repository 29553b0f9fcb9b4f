"""Bounds on what the body of a request brings besides its content."""

from __future__ import annotations

from openai_bls.api.http.connection.refusals import RefusalError
from openai_bls.pipeline.framing import MIN_CHUNK_BYTES, Framing

MAX_TRAILERS = 1024
"""Headers behind a chunked body."""
MAX_FRAMING_BYTES = 64 * 1024
"""Bytes of a chunked body that are none of its content: chunk extensions and trailers."""
FREE_CHUNKS = 64 * 1024
"""Chunks of a body, whatever their size; more of them if they are large."""


class BodyBounds(Framing):
    """Counts of one body at a time, with the refusals of what is too much."""

    def __init__(self) -> None:
        super().__init__(FREE_CHUNKS, MAX_FRAMING_BYTES)

    def begin(self) -> None:
        """Begin with a new body."""
        super().begin()
        self._trailers = 0

    def trailer(self) -> RefusalError | None:
        """Count a trailer."""
        self._trailers += 1
        if self._trailers <= MAX_TRAILERS:
            return None
        return RefusalError(431, f"The body has more than {MAX_TRAILERS} trailers.")

    def begin_chunk(self) -> RefusalError | None:
        """Count the beginning of a chunk."""
        if self.chunk():
            return None
        return RefusalError(
            413,
            f"The body comes in chunks that are too small: beyond {FREE_CHUNKS} of them there may be one for "
            f"every {MIN_CHUNK_BYTES} bytes of content.",
        )

    def end_feed(self, size: int) -> RefusalError | None:
        """Count data within a body, after the parser has told of it."""
        if self.fed(size):
            return None
        return RefusalError(431, f"Chunk extensions and trailers exceed {MAX_FRAMING_BYTES} bytes.")
