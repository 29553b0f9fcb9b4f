"""Events of a parsed output stream: content, reasoning, tool calls."""

from __future__ import annotations

from typing import Protocol

import msgspec


class ContentDelta(msgspec.Struct, frozen=True, gc=False):
    """Text for the user, never empty."""

    text: str


class ReasoningDelta(msgspec.Struct, frozen=True, gc=False):
    """Text of the model's reasoning, never empty."""

    text: str


class ToolCallStart(msgspec.Struct, frozen=True, gc=False):
    """The beginning of a call; one per call, before its arguments."""

    index: int
    """Position among the calls of the text, from 0."""
    id: str
    name: str


class ToolCallArguments(msgspec.Struct, frozen=True, gc=False):
    """The next fragment of a call's argument text, never empty."""

    index: int
    fragment: str


class AnswerEnd(msgspec.Struct, frozen=True, gc=False):
    """The answer is complete, whether or not the model goes on."""


Event = ContentDelta | ReasoningDelta | ToolCallStart | ToolCallArguments | AnswerEnd


class OutputParser(Protocol):
    """Splits one text into events, which do not depend on how the text is cut into pushes."""

    @property
    def reasoning_open(self) -> bool:
        """True while the next text belongs to the reasoning."""

    def push(self, text: str) -> list[Event]:
        """Take the next text; return the events that are certain."""

    def finish(self, *, cut: bool = False) -> list[Event]:
        """Return the events of the text held back. No push may follow.

        Args:
            cut: the text was cut by a limit on its length: what may be the beginning of a marker or of a call is
                dropped, instead of becoming content.
        """
