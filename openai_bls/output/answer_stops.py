"""Stop strings of an answer: searched in what is for the user, not in the model's thoughts or in arguments of calls."""

from __future__ import annotations

from openai_bls.output.events import AnswerEnd, ContentDelta, Event, OutputParser
from openai_bls.output.stop_strings import StopMatcher


class AnswerStops:
    """An `OutputParser` that ends the answer at the first stop string in the content that another one finds.

    Args:
        inner: parser of the text.
        stops: matcher of the stop strings.
    """

    __slots__ = ("_behind", "_inner", "_read", "_stops", "_taken")

    def __init__(self, inner: OutputParser, stops: StopMatcher) -> None:
        self._inner = inner
        self._stops = stops
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
        self._taken += len(text)
        found = self._inner.push(text)
        if found:
            self._read = self._taken
        return self._searched(found)

    def finish(self, *, cut: bool = False) -> list[Event]:
        """Return the events of the text held back; see `OutputParser`. No push may follow."""
        self._read = self._taken
        events = self._searched(self._inner.finish(cut=cut))
        if self.matched is None:
            self._flush(events)
        return events

    def _searched(self, found: list[Event]) -> list[Event]:
        events: list[Event] = []
        for event in found:
            if not isinstance(event, ContentDelta):
                self._flush(events)
                events.append(event)
                continue
            text, matched = self._stops.push(event.text)
            self._behind += len(event.text) - len(text)
            if text:
                events.append(ContentDelta(text))
            if matched is not None:
                events.append(AnswerEnd())
                break
        return events

    def _flush(self, events: list[Event]) -> None:
        """Let go of what did not become a stop string: none goes on behind a thought or a call."""
        held, self._behind = self._stops.finish(), 0
        if held:
            events.append(ContentDelta(held))
