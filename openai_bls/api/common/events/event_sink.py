"""Sinks of streamed answers: a /v1 connection or a Triton response stream. They never raise and never block."""

from __future__ import annotations

from typing import Protocol

from openai_bls.core.errors import ApiError
from openai_bls.core.usage import Usage


class EventSink(Protocol):
    """Sink of server-sent events."""

    def write(self, chunk: bytes) -> None:
        """One encoded event."""

    def end(self) -> None:
        """The stream is complete."""

    def fail(self, error: ApiError, event: bytes) -> None:
        """The stream ends with an error, encoded as `event`."""


class Cancellable(Protocol):
    """Streamed answer on its way into a sink: a `pipeline.generation.generation.Generation`, or an asyncio task."""

    def cancel(self) -> object:
        """Stop, and write nothing more: the client has gone. Harmless after the end."""


class TextEncoder(Protocol):
    """Encoder of text chunks, one per token; `chat.chunks.ChunkEncoder` is one."""

    def text(self, index: int, text: str, usage: Usage | None = None) -> bytes:
        """A piece of text of choice `index`."""


class ChunkSink(Protocol):
    """Sink of chat completion chunks."""

    sse: bool
    """Chunks are server-sent events instead of bare JSON."""
    opens_at_once: bool
    """The role chunks are written before the first token."""

    @property
    def unread(self) -> int:
        """Chunks that wait for the client."""

    def begin(self, encoder: TextEncoder) -> None:
        """Called before anything else."""

    def text(self, index: int, text: str, usage: Usage | None) -> None:
        """A piece of text of choice `index`; one that has not gone out yet may be joined to the next."""

    def write(self, chunk: bytes) -> None:
        """Any other chunk."""

    def end(self) -> None:
        """The stream is complete."""

    def fail(self, error: ApiError) -> None:
        """The stream ends with an error."""
