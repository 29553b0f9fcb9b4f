"""What is found in a text while it streams: content, reasoning, tool calls."""

from __future__ import annotations

from typing import Protocol

import msgspec


class ContentDelta(msgspec.Struct, frozen=True, gc=False):
    """Text for the user, never empty."""

    text: str


class ReasoningDelta(msgspec.Struct, frozen=True, gc=False):
    """Text that the model thinks, never empty."""

    text: str


class ToolCallStart(msgspec.Struct, frozen=True, gc=False):
    """A call begins; told once for each call, before its arguments."""

    index: int
    """0 for the first call of the text, and so on."""
    id: str
    name: str


class ToolCallArguments(msgspec.Struct, frozen=True, gc=False):
    """The next piece of a call's argument text, never empty."""

    index: int
    fragment: str


Event = ContentDelta | ReasoningDelta | ToolCallStart | ToolCallArguments


class OutputParser(Protocol):
    """Splits one text into events. How it is cut into pushes never matters."""

    @property
    def reasoning_open(self) -> bool:
        """Whether what comes next is within reasoning, as far as the text so far tells."""
        ...

    def push(self, text: str) -> list[Event]:
        """Take the next text; return what it brings."""
        ...

    def finish(self) -> list[Event]:
        """Return what was held back. No push may follow."""
        ...
