"""Reads one tool call as its characters arrive: what all forms share, and the JSON object."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Set

    # A coroutine that is sent one character at a time.
    Reader = Generator[None, str, None]
    CharReader = Generator[None, str, str]

SPACE = " \t\r\n"
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"} | {c: c for c in '"\\/'}
_ARGUMENT_KEYS = ("arguments", "parameters")
# The members of an object that may be a call, where others may not.
_CALL_KEYS = ("name", *_ARGUMENT_KEYS, "type", "id")


class MalformedError(Exception):
    """The character just sent cannot stand here."""


class CallReader(ABC):
    """An incremental reader of what stands after a call's first marker."""

    __slots__ = ("_arguments", "_begun", "_reader", "broken", "done", "idle", "name", "put_back", "told")

    def __init__(self) -> None:
        self.name = ""
        self.told = False
        """For whoever tells the call."""
        self.done = False
        """All is read. If it is not `ready`, it was no call but what may stand between or after calls."""
        self.broken = False
        """It cannot be read any further."""
        self.put_back = ""
        """When broken: the last characters that were read, which do not belong here after all."""
        self.idle = False
        """Nothing has been read but what stands between calls."""
        self._begun = False
        self._arguments: list[str] = []
        self._reader = self._block()
        next(self._reader)

    @property
    def ready(self) -> bool:
        """Whether the name is known and the arguments have begun: the call can be told."""
        return self._begun and bool(self.name)

    def read(self, text: str, place: int) -> int:
        """Read on from `text[place]`; return the place after the last character that belongs, or was put back.

        It is the end of the text unless the reader is now done or broken.
        """
        send = self._reader.send
        for at in range(place, len(text)):
            try:
                send(text[at])
            except StopIteration:
                self.done = True
                return at + 1
            except MalformedError:
                self.broken = True
                return at
        return len(text)

    def take_arguments(self) -> str:
        """The argument text that came since the last time."""
        text = "".join(self._arguments)
        self._arguments.clear()
        return text

    def following(self) -> CallReader | None:
        """What reads on directly after this call, without a marker."""
        return None

    def cut(self) -> None:
        """The text ends here: what was held of the arguments joins them, as far as it goes."""
        return

    @abstractmethod
    def _block(self) -> Reader:
        """The coroutine that reads it all."""

    def _begin(self, text: str) -> None:
        self._begun = True
        self._arguments.append(text)

    def _literal(self, *options: str, read: str = "") -> CharReader:
        """Read one of the options, of which `read` has been read; return it. None begins another."""
        while read not in options:
            char = yield
            if not any(option.startswith(read + char) for option in options):
                self.put_back = read
                raise MalformedError
            read += char
        return read


class CallScanner(CallReader):
    """An incremental reader of `{"name": ..., "arguments": ...}`, members in any order.

    It follows the structure and leaves the rest to whoever parses the arguments: brackets are
    counted, not matched, and what stands between them is not checked, since a client wants the
    text that the model wrote. A `<` outside a string ends the reading, for it begins `</tool_call>`.

    Of several members with the same meaning the first counts. `null` is as good as no arguments.
    Arguments given as a JSON string are its content; a lone surrogate in it becomes U+FFFD.

    Args:
        names: if given, only an object with one of these names and with arguments is a call. It
            must begin with the name or with `"type": "function"`, and it breaks as soon as it is
            sure to be something else.
    """

    __slots__ = ("_names",)

    def __init__(self, names: Set[str] | None = None) -> None:
        self._names = names
        super().__init__()

    def _block(self) -> Reader:
        expect((yield from after_space()), "{")
        yield from self._members()

    def _members(self) -> Reader:
        """The rest of the object."""
        char = yield from after_space()
        while char != "}":
            expect(char, '"')
            key: list[str] = []
            yield from _string(key)
            expect((yield from after_space()), ":")
            char = yield from self._member("".join(key))
            if char == ",":
                char = yield from after_space()
            else:
                expect(char, "}")
        expect(char if self.name and (self._begun or self._names is None) else "", "}")
        if not self._begun:
            self._begin("{}")

    def _member(self, key: str) -> CharReader:
        """Read a value; return the first character after it that is not space."""
        char = yield from after_space()
        if key == "name" and not self.name:
            name = yield from self._text(char)
            if self._names is not None and name not in self._names:
                raise MalformedError
            self.name = name
        elif self._names is not None and not self.name:
            # An object that begins with anything else is not to be held back.
            expect(key, "type")
            expect((yield from self._text(char)), "function")
        elif key in _ARGUMENT_KEYS and not self._begun:
            return (yield from self._argument_value(char))
        elif self._names is not None and key not in _CALL_KEYS:
            raise MalformedError
        else:
            return (yield from _value(char, []))
        return (yield from after_space())

    def _text(self, char: str) -> CharReader:
        expect(char, '"')
        text: list[str] = []
        yield from _string(text)
        return "".join(text)

    def _argument_value(self, char: str) -> CharReader:
        if char == '"':
            self._begin("")
            yield from _string(self._arguments)
            return (yield from after_space())
        if char in "{[":
            self._begin("")
            return (yield from _value(char, self._arguments))
        scalar: list[str] = []
        char = yield from _value(char, scalar)
        if scalar != list("null"):
            self._begin("".join(scalar))
        elif self._names is not None:
            self._begin("{}")
        return char


def expect(char: str, expected: str) -> None:
    """Go on only with the right character."""
    if char != expected:
        raise MalformedError


def after_space() -> CharReader:
    """The next character that is not space."""
    while (char := (yield)) in SPACE:
        pass
    return char


def _value(char: str, out: list[str]) -> CharReader:
    """A value as it stands; returns the first character after it that is not space."""
    out.append(char)
    if char not in '"{[':
        return (yield from _scalar(out))
    yield from _raw_string(out) if char == '"' else structure(out)
    return (yield from after_space())


def structure(out: list[str]) -> Reader:
    """The rest of an object or array, as it stands."""
    depth = 1
    while depth:
        char = yield
        if char == "<":
            raise MalformedError
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
        raise MalformedError
    while (char := (yield)) not in ",}" + SPACE:
        if char in '"{[:]<':
            raise MalformedError
        out.append(char)
    return (yield from after_space()) if char in SPACE else char


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
            raise MalformedError
        digits += digit
    return int(digits, 16)
