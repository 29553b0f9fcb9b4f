"""The input of a custom tool, from the arguments of the function that the tool is to the model."""

from __future__ import annotations

import re

INPUT = "input"
"""Name of the parameter that holds the input."""

_SPACE = " \t\n\r"
# Characters before the input, white space included; with more it is no call as models write it.
_MAX_HEAD = 1_000
_HEAD = ("{", f'"{INPUT}"', ":", '"')
_PLAIN = re.compile(r'[^"\\]+')
_ESCAPE = re.compile(r'\\(?:(["\\/bfnrt])|u([0-9A-Fa-f]{4})(?:\\u([Dd][C-Fc-f][0-9A-Fa-f]{2}))?)')
# What an escape may still become with more text; half a pair waits for the other half.
_BEGUN = re.compile(
    r"\\(?:u(?:[0-9A-Fa-f]{0,3}|[Dd][89ABab][0-9A-Fa-f]{2}(?:\\(?:u(?:[Dd](?:[C-Fc-f][0-9A-Fa-f]?)?)?)?)?))?"
)
_CHARS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class InputDecoder:
    """Decodes `{"input": "..."}` as it comes, however it is cut: the text that the string stands for.

    Any other text is the input as it is, and so is what is no escape within the string, or follows it: nothing is
    lost. `{}`, which a call without arguments has, is no input.
    """

    __slots__ = ("_closed", "_held", "_state", "_tail")

    def __init__(self) -> None:
        self._state = "head"
        # Text that is not decided: the head so far, or an escape that has begun.
        self._held = ""
        # The quote that may be the last, and what has followed it; whether that has a brace.
        self._tail: list[str] = []
        self._closed = False

    def push(self, fragment: str) -> str:
        """Take the next arguments; return the input that is certain."""
        if self._state == "raw":
            return fragment
        if self._state == "head":
            self._held += fragment
            end = _head_end(self._held)
            if (end == 0 or _is_nothing(self._held)) and len(self._held) <= _MAX_HEAD:
                return ""
            fragment, self._held = self._held, ""
            if not end:
                self._state = "raw"
                return fragment
            self._state, fragment = "string", fragment[end:]
        return self._decoded(fragment)

    def finish(self) -> str:
        """The rest of the input. No push may follow."""
        held, self._held = self._held, ""
        return "" if self._state == "head" and _is_nothing(held) else held

    def _decoded(self, text: str) -> str:
        text, self._held = self._held + text, ""
        out: list[str] = []
        at = 0
        while at < len(text):
            if self._tail:
                at = self._read_tail(text, at, out)
                continue
            plain = _PLAIN.match(text, at)
            if plain is not None:
                out.append(plain[0])
                at = plain.end()
            elif text[at] == '"':
                self._tail.append('"')
                at += 1
            elif (begun := _BEGUN.fullmatch(text, at)) is not None:
                self._held = begun[0]
                break
            else:
                at = _read_escape(text, at, out)
        return "".join(out)

    def _read_tail(self, text: str, at: int, out: list[str]) -> int:
        """Read on after a quote: white space and one brace end the arguments; else all of it is input."""
        start = at
        while at < len(text) and text[at] in _SPACE:
            at += 1
        if at < len(text) and text[at] == "}" and not self._closed:
            self._closed = True
            self._tail.append(text[start : at + 1])
            return at + 1
        self._tail.append(text[start:at])
        if at < len(text):
            out += self._tail
            self._tail, self._closed = [], False
        return at


def _is_nothing(text: str) -> bool:
    """True for arguments without any."""
    return "".join(text.split()) == "{}"


def _head_end(text: str) -> int | None:
    """Place after the head of the arguments; 0 if it may still come, None if it does not."""
    at = 0
    for part in _HEAD:
        while at < len(text) and text[at] in _SPACE:
            at += 1
        here = text[at : at + len(part)]
        if here != part:
            return 0 if part.startswith(here) and at + len(here) == len(text) else None
        at += len(part)
    return at


def _read_escape(text: str, at: int, out: list[str]) -> int:
    """Read one escape, or a backslash that begins none; return the place after it."""
    found = _ESCAPE.match(text, at)
    if found is None:
        out.append("\\")
        return at + 1
    char, code, low = found.groups()
    if char is not None:
        out.append(_CHARS.get(char, char))
        return found.end()
    point = int(code, 16)
    if 0xD800 <= point <= 0xDBFF and low is not None:
        out.append(chr(0x10000 + ((point - 0xD800) << 10) + int(low, 16) - 0xDC00))
        return found.end()
    # Half a pair is no text.
    out.append(text[at : at + 6] if 0xD800 <= point <= 0xDFFF else chr(point))
    return at + 6
