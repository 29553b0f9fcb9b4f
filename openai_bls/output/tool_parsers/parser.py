"""Tool calls, found in the text while it streams. How a model marks them is its `Syntax`.

The usual one is that of Hermes and Qwen: the model writes, any number of times, between or after text::

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Paris"}}
    </tool_call>

In these tokenizers `<tool_call>` is an added token that is not special, so it is in the text. `call_forms` and
`xml_calls` read other forms.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from openai_bls.output.events import ContentDelta, Event, ToolCallArguments, ToolCallStart
from openai_bls.output.markers import Markers
from openai_bls.output.tool_parsers.scanner import CallReader, CallScanner


def new_call_id() -> str:
    """`call_` and 24 random URL-safe characters."""
    return "call_" + secrets.token_urlsafe(18)


class Syntax:
    """How a model marks its calls. All markers of one begin with the same character.

    Args:
        reader: makes the reader of a block that a marker has begun; it is given the marker.
        begins: any of these begins a block.
        ends: what stands between the end of a call's arguments and any of these is dropped with it.
        closers: dropped after a call, as far as there is only space between.
        at_start: the text may begin with a call, which `reader("")` reads.
    """

    __slots__ = ("at_start", "begins", "closers", "content", "ends", "reader", "tail")

    def __init__(
        self,
        reader: Callable[[str], CallReader],
        *,
        begins: Sequence[str],
        ends: Sequence[str] = (),
        closers: Sequence[str] = (),
        at_start: bool = False,
    ) -> None:
        self.reader = reader
        self.begins = frozenset(begins)
        self.ends = tuple(ends)
        self.closers = tuple(closers)
        self.at_start = at_start
        self.content = Markers(*begins, *closers)
        """To look for in content."""
        self.tail = Markers(*begins, *ends)
        """To look for between a call's arguments and its end."""


HERMES = Syntax(lambda _: CallScanner(), begins=("<tool_call>",), ends=("</tool_call>",))


class ToolCallParser:
    """Splits one text into content and tool calls. How it is cut into pushes never matters.

    - A call is told once its name is known and its arguments have begun, in whichever order they
      stand. The fragments, joined, are the argument text exactly as the model wrote it (of a
      JSON string: its content); a call without arguments gets `{}`. `parameters` will do for
      `arguments`. Forms that are not JSON are told as JSON.
    - If the text ends, or ceases to be a call, after that, the call keeps the arguments it got.
      Before that, everything from the marker on is content. Nothing is ever repaired.
    - What stands between the end of a call's JSON and its end marker is dropped (models close one
      brace too many); if there is no end marker, it is content.
    - Content keeps its text, spaces included, but text that is all white space between or around
      calls is none.
    - The name of a call need not be one of a tool that was offered: the client decides what to
      make of it. (Forms without a marker go by the names.)

    For a whole text at once: `push(text) + finish()`.

    Args:
        new_id: makes the calls' ids.
        syntax: how the calls are marked.
    """

    __slots__ = ("_first", "_held", "_in_text", "_junk", "_new_id", "_raw", "_reader", "_space", "_syntax", "calls")

    def __init__(self, new_id: Callable[[], str] = new_call_id, syntax: Syntax = HERMES) -> None:
        self._new_id = new_id
        self._syntax = syntax
        self._first = syntax.content.first
        self.calls = 0
        """How many calls have been told."""
        # The beginning of a marker, at the end of the text so far.
        self._held = ""
        # Whether the content since the last call has any text, and the white space if it has none.
        self._in_text = False
        self._space: list[str] = []
        # Within a block: its reader, and until the call is told what was read.
        self._reader = syntax.reader("") if syntax.at_start else None
        self._raw: list[str] = []
        # After a call's arguments: what comes before the end marker.
        self._junk: list[str] | None = None

    @property
    def reasoning_open(self) -> bool:
        """Never: reasoning is `reasoning.ReasoningParser`'s."""
        return False

    def push(self, text: str) -> list[Event]:
        """Take the next text; return what it brings."""
        if self._in_text and not self._held and self._reader is None and self._first not in text:
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

    def finish(self) -> list[Event]:
        """Return what was held back. No push may follow."""
        events: list[Event] = []
        held, self._held = self._held, ""
        if self._reader is not None:
            self._cut_call(self._reader, events)
        elif self._junk is not None:
            # The end marker may be cut off, too.
            junk = "".join(self._junk) + ("" if _begins(self._syntax.ends, held) else held)
            self._junk = None
            self._content(junk, events)
        elif not (self._closed() and _begins(self._syntax.closers, held)):
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
        elif self._closed():
            self._space.clear()
        else:
            self._content(found[0], events)
        return found.end()

    def _closed(self) -> bool:
        """Whether there has been nothing but space since the last call."""
        return self.calls > 0 and not self._in_text

    def _enter_block(self, marker: str) -> None:
        self._reader = self._syntax.reader(marker)
        self._raw = [marker]

    def _read_call(self, reader: CallReader, text: str, place: int, events: list[Event]) -> tuple[str, int]:
        """Read on in a block; return what to go on with, and from where."""
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
        """Tell what is known of a call; False if nothing is."""
        if not reader.ready:
            return False
        if not reader.told:
            reader.told = True
            events.append(ToolCallStart(self.calls, self._new_id(), reader.name))
            self.calls += 1
            self._raw.clear()
            self._space.clear()
            self._in_text = False
        fragment = reader.take_arguments()
        if fragment:
            events.append(ToolCallArguments(self.calls - 1, fragment))
        return True

    def _cut_call(self, reader: CallReader, events: list[Event]) -> None:
        self._reader = None
        reader.cut()
        # What stands between calls is dropped like an end marker that is cut off.
        if not self._tell(reader, events) and not (reader.idle and self.calls):
            self._content("".join(self._raw), events)

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
        """Tell content, or keep it for as long as it is only white space."""
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
