"""Tool calls in the form of Hermes and Qwen, found in the text while it streams.

The model writes, any number of times, between or after text::

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Paris"}}
    </tool_call>

In these tokenizers `<tool_call>` is an added token that is not special, so it is in the text.
"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING

import msgspec

from openai_bls.text.call_scanner import CallScanner

if TYPE_CHECKING:
    from collections.abc import Callable

_BEGIN = "<tool_call>"
_END = "</tool_call>"
_find_begin = re.compile(_BEGIN).search
_find_either = re.compile(f"{_BEGIN}|{_END}").search


class ContentDelta(msgspec.Struct, frozen=True, gc=False):
    """Text for the user, never empty."""

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


Event = ContentDelta | ToolCallStart | ToolCallArguments


def new_call_id() -> str:
    """`call_` and 24 random URL-safe characters."""
    return "call_" + secrets.token_urlsafe(18)


class ToolCallParser:
    """Splits one text into content and tool calls. How it is cut into pushes never matters.

    - A call is told once its name is known and its arguments have begun, in whichever order they
      stand. The fragments, joined, are the argument text exactly as the model wrote it (of a
      JSON string: its content); a call without arguments gets `{}`. `parameters` will do for
      `arguments`.
    - If the text ends, or ceases to be JSON, after that, the call keeps the arguments it got.
      Before that, everything from `<tool_call>` on is content. Nothing is ever repaired.
    - What stands between the end of a call's JSON and `</tool_call>` is dropped (models close one
      brace too many); if there is no `</tool_call>`, it is content.
    - Content keeps its text, spaces included, but text that is all white space between or around
      calls is none.

    For a whole text at once: `push(text) + finish()`.

    Args:
        new_id: makes the calls' ids.
    """

    __slots__ = ("_held", "_in_text", "_junk", "_new_id", "_raw", "_scanner", "_space", "calls")

    def __init__(self, new_id: Callable[[], str] = new_call_id) -> None:
        self._new_id = new_id
        self.calls = 0
        """How many calls have been told."""
        # The beginning of a marker, at the end of the text so far.
        self._held = ""
        # Whether the content since the last call has any text, and the white space if it has none.
        self._in_text = False
        self._space: list[str] = []
        # Within a block: its reader, and until the call is told what was read. After its JSON
        # `_junk` holds what comes before the end marker.
        self._scanner: CallScanner | None = None
        self._raw: list[str] = []
        self._junk: list[str] | None = None

    def push(self, text: str) -> list[Event]:
        """Take the next text; return what it brings."""
        if self._in_text and not self._held and not self._scanner and "<" not in text:
            return [ContentDelta(text)] if text else []
        text = self._held + text
        self._held = ""
        events: list[Event] = []
        place = 0
        while place < len(text):
            if self._scanner is None:
                place = self._read_content(text, place, events)
            elif self._junk is None:
                place = self._read_call(self._scanner, text, place, events)
            else:
                place = self._read_junk(self._junk, text, place, events)
        return events

    def finish(self) -> list[Event]:
        """Return what was held back. No push may follow."""
        events: list[Event] = []
        held, self._held = self._held, ""
        if self._junk is not None:
            # The end marker may be cut off, too.
            junk = "".join(self._junk) + ("" if _END.startswith(held) else held)
            self._leave_block(junk, events)
        elif self._scanner is not None:
            if not self._scanner.ready:
                self._content("".join(self._raw), events)
            self._scanner = None
        else:
            self._content(held, events)
            if not self.calls and not self._in_text and self._space:
                events.append(ContentDelta("".join(self._space)))
        self._space.clear()
        return events

    def _read_content(self, text: str, place: int, events: list[Event]) -> int:
        found = _find_begin(text, place)
        if found is None:
            end = len(text) - _partial(text, place, (_BEGIN,))
            self._held = text[end:]
            self._content(text[place:end], events)
            return len(text)
        self._content(text[place : found.start()], events)
        self._enter_block()
        return found.end()

    def _enter_block(self) -> None:
        self._scanner = CallScanner()
        self._raw = [_BEGIN]
        self._junk = None

    def _read_call(self, scanner: CallScanner, text: str, place: int, events: list[Event]) -> int:
        told = scanner.ready
        end = scanner.read(text, place)
        if scanner.ready:
            if not told:
                events.append(ToolCallStart(self.calls, self._new_id(), scanner.name))
                self.calls += 1
                self._raw.clear()
                self._space.clear()
                self._in_text = False
            fragment = scanner.take_arguments()
            if fragment:
                events.append(ToolCallArguments(self.calls - 1, fragment))
            if scanner.done or scanner.broken:
                self._junk = []
        else:
            self._raw.append(text[place:end])
            if scanner.broken:
                self._scanner = None
                self._content("".join(self._raw), events)
        return end

    def _read_junk(self, junk: list[str], text: str, place: int, events: list[Event]) -> int:
        found = _find_either(text, place)
        if found is None:
            end = len(text) - _partial(text, place, (_BEGIN, _END))
            self._held = text[end:]
            junk.append(text[place:end])
            return len(text)
        if found[0] == _END:
            self._leave_block("", events)
        else:
            junk.append(text[place : found.start()])
            self._leave_block("".join(junk), events)
            self._enter_block()
        return found.end()

    def _leave_block(self, junk: str, events: list[Event]) -> None:
        self._scanner = None
        self._junk = None
        self._content(junk, events)

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


def _partial(text: str, place: int, markers: tuple[str, ...]) -> int:
    """The length of the longest end of `text[place:]` that begins a marker."""
    # A marker has a single "<", its first character.
    start = text.rfind("<", place)
    if start < 0:
        return 0
    tail = text[start:]
    return len(tail) if any(marker.startswith(tail) for marker in markers) else 0
