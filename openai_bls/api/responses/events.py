"""Server-sent events of a streamed response, numbered in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from openai_bls.api.common.encoding import encode

Delta = Callable[[str, list[dict[str, Any]]], None]
"""Writer of the next piece of a text, with the log-probabilities of its tokens."""


class EventWriter:
    """Encodes events and writes them one by one.

    Args:
        write: takes an encoded event; None, for whole answers, writes none.
    """

    def __init__(self, write: Callable[[bytes], None] | None) -> None:
        self._write = write
        self._number = 0

    def event(self, kind: str, **fields: Any) -> None:
        """Write an event of type `kind`."""
        if self._write is not None:
            self._write(self.encode(kind, **fields))

    def encode(self, kind: str, **fields: Any) -> bytes:
        """The next event, which the caller writes."""
        return _frame(kind) + encode({"type": kind, "sequence_number": self._next(), **fields}) + b"\n\n"

    def deltas(self, kind: str, *, logprobs: bool = False, **fields: Any) -> Delta:
        """Writer of the pieces of one text: an event of type `kind` each, with `fields` and the piece as `delta`.

        There is one of these events per token, so all but the text is encoded once.

        Args:
            kind: type of the events.
            logprobs: whether the events have log-probabilities.
            fields: fields that all the events share.
        """
        write = self._write
        if write is None:
            return lambda text, tokens: None
        head = _frame(kind) + encode({"type": kind, **fields})[:-1] + b',"delta":'

        def plain(text: str, tokens: list[dict[str, Any]]) -> None:
            write(head + encode(text) + b',"sequence_number":%d}\n\n' % self._next())

        def with_logprobs(text: str, tokens: list[dict[str, Any]]) -> None:
            listed = encode(tokens) if tokens else b"[]"
            write(head + encode(text) + b',"logprobs":' + listed + b',"sequence_number":%d}\n\n' % self._next())

        return with_logprobs if logprobs else plain

    def _next(self) -> int:
        number = self._number
        self._number += 1
        return number


def _frame(kind: str) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: "
