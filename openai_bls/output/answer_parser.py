"""Parser of an answer after reasoning: drops the markers that end it, and passes its text on to that of calls."""

from __future__ import annotations

from openai_bls.output.events import ContentDelta, Event, OutputParser
from openai_bls.output.markers import Markers


class AnswerParser:
    """Splits an answer into what `inner` finds, without closing markers, independent of how it is cut into pushes.

    - Of each closing marker the first one is dropped, where it is content, with the line breaks before it. White
      space after it is dropped unless text follows what was there before it.
    - Of a text that is cut, the beginning of a marker is dropped.

    Args:
        inner: parser of the answer's text; None makes all of it content.
        closers: the markers.
    """

    __slots__ = ("_closers", "_held", "_inner", "_marks", "_over", "_space", "_told")

    def __init__(self, inner: OutputParser | None, closers: tuple[str, ...]) -> None:
        self._inner = inner
        self._closers = closers
        self._marks = Markers(*closers)
        # Text that may begin a marker.
        self._held = ""
        # White space that is sent only if text follows.
        self._space: list[str] = []
        # No text since a marker, and whether there was content before.
        self._over = False
        self._told = False

    @property
    def settled(self) -> bool:
        """True if all further text is content as it is."""
        return self._inner is None and not self._closers and not self._over and not self._space

    def push(self, text: str) -> list[Event]:
        """Take the next text; return the events that are certain."""
        found: list[Event] = [ContentDelta(text)] if self._inner is None else self._inner.push(text)
        return self._open(found) if self._closers or self._over or self._space else found

    def finish(self, *, cut: bool = False) -> list[Event]:
        """Return the events of the text held back; see `OutputParser`. No push may follow."""
        events = self._open([] if self._inner is None else self._inner.finish(cut=cut))
        if cut:
            self._held = ""
        self._flush(events)
        return events

    def _open(self, found: list[Event]) -> list[Event]:
        events: list[Event] = []
        for event in found:
            if isinstance(event, ContentDelta):
                self._content(event.text, events)
            else:
                self._flush(events)
                events.append(event)
        return events

    def _content(self, text: str, events: list[Event]) -> None:
        text, self._held = self._held + text, ""
        while (found := self._marks.find(text)) is not None:
            self._tell(text[: found.start()], events)
            self._space.clear()
            self._over = True
            text = text[found.end() :]
            self._closers = tuple(closer for closer in self._closers if closer != found[0])
            self._marks = Markers(*self._closers)
        end = self._marks.certain(text)
        self._held = text[end:]
        self._tell(text[:end], events)

    def _tell(self, text: str, events: list[Event]) -> None:
        """Add content, but for the white space at its end."""
        stripped = text.rstrip() if self._over else text.rstrip("\n")
        if not stripped:
            self._space.append(text)
            return
        told = "".join(self._space) + stripped
        if self._over and not self._told:
            told = told.lstrip()
        self._space = [text[len(stripped) :]] if len(text) > len(stripped) else []
        self._over, self._told = False, True
        events.append(ContentDelta(told))

    def _flush(self, events: list[Event]) -> None:
        """Add what is held back, as no marker follows."""
        held, self._held = self._held, ""
        if held:
            self._tell(held, events)
        space = "".join(self._space)
        self._space = []
        if space and not self._over:
            events.append(ContentDelta(space))
