"""Where a stream of encoded events goes."""

from __future__ import annotations

from typing import Protocol

from openai_bls.core.errors import ApiError


class EventSink(Protocol):
    """A stream's reader; `http.sse.EventStream` is one. Never raises, never blocks."""

    def write(self, chunk: bytes) -> None:
        """One encoded event."""
        ...

    def end(self) -> None:
        """The stream is complete."""
        ...

    def fail(self, error: ApiError, event: bytes) -> None:
        """The stream ends with an error, encoded as `event`."""
        ...
