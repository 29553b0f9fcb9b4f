"""Stop strings of an answer: searched in what is for the user, not in the model's thoughts or in arguments of calls."""

from __future__ import annotations

from openai_bls.output.events import (
    AnswerEnd,
    ContentDelta,
    Event,
    OutputParser,
    ReasoningDelta,
    ToolCallArguments,
)
from openai_bls.output.stop_strings import StopMatcher
from openai_bls.output.stops import Marks


class AnswerStops:
    """An `OutputParser` that ends the answer at the first stop string in the content that another one finds.

    Args:
        inner: parser of the text.
        stops: matcher of the stop strings.
        marks: marks of special tokens in the text; None if it has none.
    """

    __slots__ = ("_behind", "_in_call", "_inner", "_marks", "_read", "_stops", "_taken")

    def __init__(self, inner: OutputParser, stops: StopMatcher, marks: Marks | None = None) -> None:
        self._inner = inner
        self._stops = stops
        self._marks = marks
        self._in_call = False
        # Characters taken, those of them of which it is certain what they are, and those of content that are held back
        # or cut off.
        self._taken = self._read = self._behind = 0

    @property
    def reasoning_open(self) -> bool:
        """True while the next text belongs to the reasoning."""
        return self._inner.reasoning_open

    @property
    def matched(self) -> str | None:
        """The stop string that ended the answer."""
        return self._stops.matched

    @property
    def passed(self) -> int:
        """Characters of the text that are in events, or before them."""
        return self._read - self._behind

    def push(self, text: str) -> list[Event]:
        """Take the next text; return the events that are certain, up to an `AnswerEnd` at a stop string."""
        self._taken += len(self._visible(text))
        # What is no content is not searched, and its parsers know no marks.
        found = self._inner.push(text if self._in_content else self._visible(text))
        if found:
            self._read = self._taken
        return self._searched(found)

    def finish(self, *, cut: bool = False, end: str = "") -> list[Event]:
        """Return the events of the text held back; see `OutputParser`. No push may follow.

        Args:
            cut: the output is cut.
            end: mark of the token that ended it, which may be the last of a stop string.
        """
        self._read = self._taken
        events = self._searched(self._inner.finish(cut=cut))
        if end and self._in_content and self.matched is None:
            self._search(end, events)
        if self.matched is None:
            self._flush(events)
        return events

    def _searched(self, found: list[Event]) -> list[Event]:
        events: list[Event] = []
        for event in found:
            if not isinstance(event, ContentDelta):
                self._in_call = not isinstance(event, ReasoningDelta)
                self._flush(events)
                events += [event] if self._marks is None else _without_marks(event, self._marks)
                continue
            self._in_call = False
            self._search(event.text, events)
            if self.matched is not None:
                break
        return events

    def _search(self, content: str, events: list[Event]) -> None:
        """Add the event of new content, and at a stop string the answer's end."""
        text, matched = self._stops.push(content)
        told = self._visible(text)
        self._behind += len(self._visible(content)) - len(told)
        if told:
            events.append(ContentDelta(told))
        if matched is not None:
            events.append(AnswerEnd())

    def _visible(self, text: str) -> str:
        return text if self._marks is None else self._marks.visible(text)

    @property
    def _in_content(self) -> bool:
        return not self._inner.reasoning_open and not self._in_call

    def _flush(self, events: list[Event]) -> None:
        """Let go of what did not become a stop string: none goes on behind a thought or a call."""
        held, self._behind = self._visible(self._stops.finish()), 0
        if held:
            events.append(ContentDelta(held))


def _without_marks(event: Event, marks: Marks) -> list[Event]:
    """An event that is no content, whose first characters may have been taken for some; none if nothing is left."""
    if isinstance(event, ReasoningDelta):
        text = marks.visible(event.text)
        return [ReasoningDelta(text)] if text else []
    if isinstance(event, ToolCallArguments):
        fragment = marks.visible(event.fragment)
        return [ToolCallArguments(event.index, fragment)] if fragment else []
    return [event]
