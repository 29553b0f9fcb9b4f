"""Streaming tool-call parser: splits text into content and calls by a format's `Syntax`."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from openai_bls.output.events import ContentDelta, Event, ToolCallArguments, ToolCallStart
from openai_bls.output.markers import Markers
from openai_bls.output.tool_parsers.scanner import CallReader


def new_call_id() -> str:
    """`call_` and 24 random URL-safe characters."""
    return "call_" + secrets.token_urlsafe(18)


class Syntax:
    """The markers of a tool-call format (see `Markers`), and its reader.

    Args:
        reader: makes the reader of a block, given the marker that begins it.
        begins: markers that begin a block.
        ends: markers that are dropped after a call, with any text between its arguments and the marker.
        closers: markers that are dropped after a call if only white space precedes them.
        dropped: markers that are dropped wherever they stand in content.
        at_start: the text may begin with a call, read by `reader("")`.
    """

    __slots__ = ("at_start", "begins", "closers", "content", "dropped", "ends", "reader", "tail")

    def __init__(
        self,
        reader: Callable[[str], CallReader],
        *,
        begins: Sequence[str],
        ends: Sequence[str] = (),
        closers: Sequence[str] = (),
        dropped: Sequence[str] = (),
        at_start: bool = False,
    ) -> None:
        self.reader = reader
        self.begins = frozenset(begins)
        self.ends = tuple(ends)
        self.closers = tuple(closers)
        self.dropped = frozenset(dropped)
        self.at_start = at_start
        self.content = Markers(*begins, *closers, *dropped)
        """Markers searched for in content."""
        self.tail = Markers(*begins, *ends)
        """Markers searched for after a call's arguments."""


class ToolCallParser:
    """Splits one text into content and tool calls, independent of how it is cut into pushes.

    - A call starts once its name is known and its arguments have begun, in either order. The fragments, joined, are
      the argument text exactly as the model wrote it (of a JSON string: its content); a call without arguments gets
      `{}`. `parameters` is the same as `arguments`. Formats other than JSON are converted to JSON.
    - If the text ends, or ceases to be a call, after that, the call keeps its arguments so far. Before that,
      everything from the marker on is content; of a text that is cut it is dropped, so that a call that is cut leaves
      no markup. Nothing is repaired.
    - Text between the end of a call's JSON and its end marker is dropped (models close one brace too many); without
      an end marker it is content.
    - Content keeps its white space, but text of white space alone between or around calls is dropped.
    - The name of a call need not be that of an offered tool; only formats without a marker depend on the names.

    Args:
        syntax: the markers and the reader of the format.
        new_id: makes the ids of calls without one of their own, or with one that an earlier call has.
    """

    __slots__ = (
        "_held",
        "_ids",
        "_in_text",
        "_junk",
        "_may_begin",
        "_new_id",
        "_raw",
        "_reader",
        "_space",
        "_syntax",
        "calls",
    )

    def __init__(self, syntax: Syntax, new_id: Callable[[], str] = new_call_id) -> None:
        self._new_id = new_id
        self._syntax = syntax
        self._may_begin = syntax.content.may_begin
        self.calls = 0
        """Number of calls started."""
        self._ids = {""}
        # A partial marker at the end of the text.
        self._held = ""
        # Whether there is content since the last call; the white space if there is not.
        self._in_text = False
        self._space: list[str] = []
        # Within a block: its reader, and the text read until the call starts.
        self._reader = syntax.reader("") if syntax.at_start else None
        self._raw: list[str] = []
        # After a call's arguments: the text before the end marker.
        self._junk: list[str] | None = None

    @property
    def reasoning_open(self) -> bool:
        """False: reasoning is `ReasoningParser`'s."""
        return False

    def push(self, text: str) -> list[Event]:
        """Take the next text; return the events that are certain."""
        if self._in_text and not self._held and self._reader is None and not self._may_begin(text):
            return [ContentDelta(text)] if text else []
        text = self._held + text
        self._held = ""
        events: list[Event] = []
        place = 0
        while place < len(text):
            if self._reader is not None:
                text, place = self._read_call(self._reader, text, place, events)
            elif self._junk is not None:
                place = self._read_junk(self._junk, text, place, events)
            else:
                place = self._read_content(text, place, events)
        return events

    def finish(self, *, cut: bool = False) -> list[Event]:
        """Return the events of the text held back; see `OutputParser`. No push may follow."""
        events: list[Event] = []
        held, self._held = self._held, ""
        if self._reader is not None:
            self._end_call(self._reader, events, cut=cut)
        elif self._junk is not None:
            # The end marker may be cut off as well.
            junk = "".join(self._junk) + ("" if _begins(self._syntax.ends, held) else held)
            self._junk = None
            if not cut:
                self._content(junk, events)
        elif not cut and not (self._closed() and _begins(self._syntax.closers, held)):
            self._content(held, events)
        if not self.calls and not self._in_text and self._space:
            events.append(ContentDelta("".join(self._space)))
        self._space.clear()
        return events

    def _read_content(self, text: str, place: int, events: list[Event]) -> int:
        markers = self._syntax.content
        found = markers.find(text, place)
        if found is None:
            end = markers.certain(text, place)
            self._held = text[end:]
            self._content(text[place:end], events)
            return len(text)
        self._content(text[place : found.start()], events)
        if found[0] in self._syntax.begins:
            self._enter_block(found[0])
        elif found[0] in self._syntax.closers and self._closed():
            self._space.clear()
        elif found[0] not in self._syntax.dropped:
            self._content(found[0], events)
        return found.end()

    def _closed(self) -> bool:
        """True if only white space followed the last call."""
        return self.calls > 0 and not self._in_text

    def _enter_block(self, marker: str) -> None:
        self._reader = self._syntax.reader(marker)
        self._raw = [marker]

    def _read_call(self, reader: CallReader, text: str, place: int, events: list[Event]) -> tuple[str, int]:
        """Read on in a block; return the text and the position to continue with."""
        end = reader.read(text, place)
        if not self._tell(reader, events):
            self._raw.append(text[place:end])
        if reader.broken:
            self._reader = None
            if not reader.ready:
                raw = "".join(self._raw)
                self._content(raw[: len(raw) - len(reader.put_back)], events)
            elif self._syntax.ends:
                self._junk = []
            if reader.put_back:
                return reader.put_back + text[end:], 0
        elif reader.done:
            self._reader = reader.following() if reader.ready else None
            self._raw = []
            if reader.ready and self._syntax.ends:
                self._junk = []
        return text, end

    def _tell(self, reader: CallReader, events: list[Event]) -> bool:
        """Add the events of a call; False if it has not started."""
        if not reader.ready:
            return False
        if not reader.started:
            reader.started = True
            call_id = self._new_id() if reader.id in self._ids else reader.id
            self._ids.add(call_id)
            events.append(ToolCallStart(self.calls, call_id, reader.name))
            self.calls += 1
            self._raw.clear()
            self._space.clear()
            self._in_text = False
        fragment = reader.take_arguments()
        if fragment:
            events.append(ToolCallArguments(self.calls - 1, fragment))
        return True

    def _end_call(self, reader: CallReader, events: list[Event], *, cut: bool) -> None:
        self._reader = None
        reader.cut()
        if self._tell(reader, events):
            return
        raw = "".join(self._raw)
        # Text between calls is dropped like an end marker that is cut off.
        if not (reader.idle and self.calls) and not (cut and raw.strip()):
            self._content(raw, events)

    def _read_junk(self, junk: list[str], text: str, place: int, events: list[Event]) -> int:
        markers = self._syntax.tail
        found = markers.find(text, place)
        if found is None:
            end = markers.certain(text, place)
            self._held = text[end:]
            junk.append(text[place:end])
            return len(text)
        self._junk = None
        if found[0] in self._syntax.begins:
            junk.append(text[place : found.start()])
            self._content("".join(junk), events)
            self._enter_block(found[0])
        return found.end()

    def _content(self, text: str, events: list[Event]) -> None:
        """Add content, or hold it while it is only white space."""
        if not text:
            return
        if not self._in_text:
            self._space.append(text)
            if not text.strip():
                return
            self._in_text = True
            text = "".join(self._space)
            self._space.clear()
        if events and isinstance(last := events[-1], ContentDelta):
            events[-1] = ContentDelta(last.text + text)
        else:
            events.append(ContentDelta(text))


def _begins(markers: Sequence[str], text: str) -> bool:
    return any(marker.startswith(text) for marker in markers)
