"""Reads the JSON object of one tool call as its characters arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

    # A coroutine that is sent one character at a time.
    Reader = Generator[None, str, None]
    CharReader = Generator[None, str, str]

_SPACE = " \t\r\n"
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"} | {c: c for c in '"\\/'}
_ARGUMENT_KEYS = ("arguments", "parameters")


class _MalformedError(Exception):
    """The character just sent cannot stand here."""


class CallScanner:
    """An incremental reader of `{"name": ..., "arguments": ...}`, members in any order.

    It follows the structure and leaves the rest to whoever parses the arguments: brackets are
    counted, not matched, and what stands between them is not checked, since a client wants the
    text that the model wrote. A `<` outside a string ends the reading, for it begins `</tool_call>`.

    Of several members with the same meaning the first counts. `null` is as good as no arguments.
    Arguments given as a JSON string are its content; a lone surrogate in it becomes U+FFFD.
    """

    __slots__ = ("_arguments", "_begun", "_reader", "broken", "done", "name")

    def __init__(self) -> None:
        self.name = ""
        self.done = False
        """The object is complete, and it is a call."""
        self.broken = False
        """It cannot be read any further."""
        self._begun = False
        self._arguments: list[str] = []
        self._reader = self._object()
        next(self._reader)

    @property
    def ready(self) -> bool:
        """Whether the name is known and the arguments have begun: the call can be told."""
        return self._begun and bool(self.name)

    def read(self, text: str, place: int) -> int:
        """Read on from `text[place]`; return the place after the last character that belongs.

        It is the end of the text unless the object is now done or broken.
        """
        send = self._reader.send
        for at in range(place, len(text)):
            try:
                send(text[at])
            except StopIteration:
                self.done = True
                return at + 1
            except _MalformedError:
                self.broken = True
                return at
        return len(text)

    def take_arguments(self) -> str:
        """The argument text that came since the last time."""
        text = "".join(self._arguments)
        self._arguments.clear()
        return text

    def _object(self) -> Reader:
        _expect((yield from _after_space()), "{")
        char = yield from _after_space()
        while char != "}":
            _expect(char, '"')
            key: list[str] = []
            yield from _string(key)
            _expect((yield from _after_space()), ":")
            char = yield from self._member("".join(key))
            if char == ",":
                char = yield from _after_space()
            else:
                _expect(char, "}")
        _expect(char if self.name else "", "}")
        if not self._begun:
            self._begin("{}")

    def _member(self, key: str) -> CharReader:
        """Read a value; return the first character after it that is not space."""
        char = yield from _after_space()
        if key == "name" and not self.name:
            _expect(char, '"')
            name: list[str] = []
            yield from _string(name)
            self.name = "".join(name)
        elif key in _ARGUMENT_KEYS and not self._begun:
            if char == '"':
                self._begin("")
                yield from _string(self._arguments)
            elif char in "{[":
                self._begin(char)
                yield from _structure(self._arguments)
            else:
                scalar = [char]
                char = yield from _scalar(scalar)
                if scalar != list("null"):
                    self._begin("".join(scalar))
                return char
        elif char == '"':
            yield from _raw_string([])
        elif char in "{[":
            yield from _structure([])
        else:
            return (yield from _scalar([char]))
        return (yield from _after_space())

    def _begin(self, text: str) -> None:
        self._begun = True
        self._arguments.append(text)


def _expect(char: str, expected: str) -> None:
    if char != expected:
        raise _MalformedError


def _after_space() -> CharReader:
    while (char := (yield)) in _SPACE:
        pass
    return char


def _structure(out: list[str]) -> Reader:
    """The rest of an object or array, as it stands."""
    depth = 1
    while depth:
        char = yield
        if char == "<":
            raise _MalformedError
        out.append(char)
        if char == '"':
            yield from _raw_string(out)
        elif char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1


def _raw_string(out: list[str]) -> Reader:
    """The rest of a string, as it stands."""
    char = ""
    while char != '"':
        char = yield
        out.append(char)
        if char == "\\":
            out.append((yield))


def _scalar(out: list[str]) -> CharReader:
    """The rest of a number or literal; returns the first character after it that is not space."""
    if out[0] in ",:}]<":
        raise _MalformedError
    while (char := (yield)) not in ",}" + _SPACE:
        if char in '"{[:]<':
            raise _MalformedError
        out.append(char)
    return (yield from _after_space()) if char in _SPACE else char


def _string(out: list[str]) -> Reader:
    """The rest of a string, decoded. An escape that JSON does not know stays as it is."""
    high = 0
    while True:
        char = yield
        end = char == '"'
        unit = 0
        if char == "\\":
            char = yield
            if char == "u":
                unit = yield from _code_unit()
                char = chr(unit)
            else:
                char = _ESCAPES.get(char, "\\" + char)
        if high and 0xDC00 <= unit < 0xE000:
            char = chr(0x10000 + ((high - 0xD800) << 10) + (unit - 0xDC00))
            high = unit = 0
        elif high:
            out.append("\ufffd")
            high = 0
        if end:
            return
        if 0xD800 <= unit < 0xDC00:
            high = unit
        else:
            out.append("\ufffd" if 0xDC00 <= unit < 0xE000 else char)


def _code_unit() -> Generator[None, str, int]:
    digits = ""
    while len(digits) < 4:
        digit = yield
        if digit not in "0123456789abcdefABCDEF":
            raise _MalformedError
        digits += digit
    return int(digits, 16)
