"""Streamed body of bytes, such as audio, on one connection: what `event_stream` does, without events."""

from __future__ import annotations

import math

from openai_bls.api.http.body_budget import UnreadBytes
from openai_bls.api.http.event_stream import EventStream
from openai_bls.api.http.write_batcher import WriteBatcher
from openai_bls.core.errors import ApiError


class ByteStream(EventStream):
    """The sink of a streamed body and the response that sends it.

    Nothing breaks its silence, and nothing in it can tell of an error: one before the first piece is the response's
    status, a later one breaks the connection off, which a client takes for a body that is not whole.

    Args:
        content_type: content type of the body.
        write_batcher: schedules the writes.
        unread: count of what its client has not read; None is none.
    """

    sse = False

    def __init__(self, content_type: str, write_batcher: WriteBatcher, unread: UnreadBytes | None = None) -> None:
        super().__init__(math.inf, write_batcher, ending=b"", unread=unread)
        self.raw_headers = [(b"content-type", content_type.encode()), (b"x-accel-buffering", b"no")]

    def fail(self, error: ApiError, event: bytes | None = None) -> None:
        """The error is the response's status, or the body ends before its end."""
        self._error = error
        self._is_cut = True
        # As many as an error event and what ends a stream: `first` knows by it whether there was a piece.
        self._pending += (b"", b"")
        self._ended = True
        self._wake()
