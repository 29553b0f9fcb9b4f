"""Server-sent events of a streamed response, numbered in order, and the output items that they build."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Raw

from openai_bls.api.common.encoding import encode, new_id
from openai_bls.api.responses.items import Item, Status
from openai_bls.pipeline.generation.collector import GrowingText

Delta = Callable[[str, list[Raw]], None]
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

        def plain(text: str, tokens: list[Raw]) -> None:
            write(head + encode(text) + b',"sequence_number":%d}\n\n' % self._next())

        def with_logprobs(text: str, tokens: list[Raw]) -> None:
            listed = encode(tokens) if tokens else b"[]"
            write(head + encode(text) + b',"logprobs":' + listed + b',"sequence_number":%d}\n\n' % self._next())

        return with_logprobs if logprobs else plain

    def _next(self) -> int:
        number = self._number
        self._number += 1
        return number


def _frame(kind: str) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: "


class Growing:
    """An output item that is still growing."""

    prefix = ""

    def __init__(self, index: int, events: EventWriter) -> None:
        self.id = new_id(self.prefix)
        self.text = GrowingText()
        self._events = events
        # Identity of the item in its events.
        self._place: dict[str, Any] = {"item_id": self.id, "output_index": index}

    def open(self) -> None:
        """Write the events that begin the item."""
        self._events.event(
            "response.output_item.added", output_index=self._place["output_index"], item=self.item("in_progress", "")
        )
        self._delta = self._begin()

    def add(self, text: str, logprobs: list[Raw]) -> int:
        """The next piece of its text; see `GrowingText.add`."""
        size = self.text.add(text)
        self._delta(text, logprobs)
        return size

    def close(self, status: Status) -> Item:
        """Write the events that end the item; return it as a response lists it."""
        text = self.text.whole
        self._end(text)
        item = self.item(status, text)
        self._events.event("response.output_item.done", output_index=self._place["output_index"], item=item)
        return item

    def so_far(self) -> Item:
        """The unfinished item."""
        return self.item("incomplete", self.text.whole)

    def item(self, status: Status, text: str) -> Item:
        """The item with that text; without any if it is just beginning."""
        raise NotImplementedError

    def _begin(self) -> Delta:
        """Write the events before the text."""
        raise NotImplementedError

    def _end(self, text: str) -> None:
        """Write the events after the text."""
        raise NotImplementedError
