"""Incremental readers of one tool call: the base of all formats, the JSON object, and the list of JSON objects."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Set

# A coroutine that is sent one character at a time.
Reader = Generator[None, str, None]
CharReader = Generator[None, str, str]

SPACE = " \t\r\n"
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"} | {c: c for c in '"\\/'}
# Hexadecimal digits of an escape by its first character.
_CODES = {"u": 4}
_MAX_CODE = 0x10FFFF
_ARGUMENT_KEYS = ("arguments", "parameters")
# The members of an object that may be a call, where others may not.
_CALL_KEYS = ("name", *_ARGUMENT_KEYS, "type", "id")


class MalformedError(Exception):
    """The last character cannot occur here."""


class CallReader(ABC):
    """Incremental reader of the text after a call's first marker."""

    __slots__ = ("_arguments", "_begun", "_reader", "broken", "done", "id", "idle", "name", "put_back", "started")

    def __init__(self) -> None:
        self.name = ""
        self.id = ""
        """The model's own id of the call, in formats whose later prompts repeat it; else empty."""
        self.started = False
        """The call's start event has been sent; set by the parser."""
        self.done = False
        """The call is complete. If not `ready`, it was text between or after calls."""
        self.broken = False
        """The text is malformed from here on."""
        self.put_back = ""
        """Last characters read, if the call is broken: they do not belong to it."""
        self.idle = False
        """True if only text between calls has been read."""
        self._begun = False
        self._arguments: list[str] = []
        self._reader = self._block()
        next(self._reader)

    @property
    def ready(self) -> bool:
        """True once the name is known and the arguments have begun."""
        return self._begun and bool(self.name)

    def read(self, text: str, place: int) -> int:
        """Read on from `text[place]`; return the position after the last character of the call, or put back.

        That is the end of the text unless the reader is now done or broken.
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
        """The argument text since the last call of this method."""
        text = "".join(self._arguments)
        self._arguments.clear()
        return text

    def following(self) -> CallReader | None:
        """The reader of the text directly after this call, without a marker."""
        return None

    def cut(self) -> None:
        """The text ends here: held argument text becomes part of the arguments."""
        return

    @abstractmethod
    def _block(self) -> Reader:
        """The coroutine that reads the block."""

    def _begin(self, text: str) -> None:
        self._begun = True
        self._arguments.append(text)

    def _head(self, marker: str, *, begin: str = "") -> CharReader:
        """Read the text up to `marker`, which begins with `<`; return it. `begin` must come before, if it is given."""
        if begin:
            expect((yield from after_space()), "<")
            yield from self._literal(begin, read="<")
        head: list[str] = []
        while (char := (yield)) != "<":
            head.append(char)
        yield from self._literal(marker, read="<")
        return "".join(head)

    def _literal(self, *options: str, read: str = "") -> CharReader:
        """Read one of the options, of which `read` has been read; return it. No option is a prefix of another."""
        while read not in options:
            char = yield
            if not any(option.startswith(read + char) for option in options):
                self.put_back = read
                raise MalformedError
            read += char
        return read


class CallScanner(CallReader):
    """Incremental reader of `{"name": ..., "arguments": ...}`, members in any order.

    Brackets are counted, not matched, and the text between them is not checked: the client gets the text that the
    model wrote. A `<` outside a string ends the call, since it begins `</tool_call>`.

    Of several members with the same meaning the first counts. `null` means no arguments. Arguments given as a JSON
    string are its content; a lone surrogate in it becomes U+FFFD.

    Args:
        names: if given, only an object with one of these names and with arguments is a call. It must begin with the
            name or with `"type": "function"`, and breaks as soon as it cannot be a call.
    """

    __slots__ = ("_names",)
    _QUOTES = '"'
    """Characters that begin a string."""
    _NAME_KEYS: tuple[str, ...] = ("name",)
    """The members that may hold the name."""

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
            key: list[str] = []
            yield from self._quoted(char, key.append)
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
        """Read a member's value; return the next character that is not white space."""
        char = yield from after_space()
        if key in self._NAME_KEYS and not self.name:
            name = yield from self._text(char)
            if self._names is not None and name not in self._names:
                raise MalformedError
            self.name = name
        elif self._names is not None and not self.name:
            # An object that begins with anything else is not held back.
            expect(key, "type")
            expect((yield from self._text(char)), "function")
        elif key in _ARGUMENT_KEYS and not self._begun:
            return (yield from self._argument_value(char))
        elif self._names is not None and key not in _CALL_KEYS:
            raise MalformedError
        else:
            return (yield from self._value(char, []))
        return (yield from after_space())

    def _text(self, char: str) -> CharReader:
        text: list[str] = []
        yield from self._quoted(char, text.append)
        return "".join(text)

    def _quoted(self, char: str, add: Callable[[str], None]) -> Reader:
        """Read the rest of a string that begins with `char`, decoded."""
        expect(char, '"')
        yield from string(add)

    def _value(self, char: str, out: list[str]) -> CharReader:
        """Read a value; return the next character that is not white space."""
        return (yield from _value(char, out))

    def _argument_value(self, char: str) -> CharReader:
        if char in self._QUOTES:
            self._begin("")
            yield from self._quoted(char, self._arguments.append)
            return (yield from after_space())
        if char in "{[":
            self._begin("")
            return (yield from self._value(char, self._arguments))
        scalar: list[str] = []
        char = yield from self._value(char, scalar)
        if scalar != list("null"):
            self._begin("".join(scalar))
        elif self._names is not None:
            self._begin("{}")
        return char


class ListReader(CallScanner):
    """Reads the next call of a block: JSON objects one after another, as a list or without brackets and commas."""

    __slots__ = ("_follows", "_in_list")

    def __init__(self, *, follows: bool = False, in_list: bool = False) -> None:
        self._follows = follows
        self._in_list = in_list
        super().__init__()
        self.idle = follows

    def _block(self) -> Reader:
        char = yield from after_space()
        if self._follows:
            if char == "]" and self._in_list:
                return
            if char == ",":
                char = yield from after_space()
        elif char == "[":
            self._in_list = True
            char = yield from after_space()
        expect(char, "{")
        self.idle = False
        yield from self._members()

    def following(self) -> CallReader:
        """The next call."""
        return type(self)(follows=True, in_list=self._in_list)


def expect(char: str, expected: str) -> None:
    """Refuse any other character."""
    if char != expected:
        raise MalformedError


def after_space() -> CharReader:
    """The next character that is not white space."""
    while (char := (yield)) in SPACE:
        pass
    return char


def _value(char: str, out: list[str]) -> CharReader:
    """Read a value verbatim; return the next character that is not white space."""
    out.append(char)
    if char not in '"{[':
        return (yield from _scalar(out))
    yield from _raw_string(out) if char == '"' else structure(out)
    return (yield from after_space())


def structure(out: list[str]) -> Reader:
    """Read the rest of an object or array verbatim."""
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
    """Read the rest of a string verbatim."""
    char = ""
    while char != '"':
        char = yield
        out.append(char)
        if char == "\\":
            out.append((yield))


def _scalar(out: list[str]) -> CharReader:
    """Read the rest of a number or literal; return the next character that is not white space."""
    if out[0] in ",:}]<":
        raise MalformedError
    while (char := (yield)) not in ",}" + SPACE:
        if char in '"{[:]<':
            raise MalformedError
        out.append(char)
    return (yield from after_space()) if char in SPACE else char


def string(add: Callable[[str], None], quote: str = '"', codes: Mapping[str, int] = _CODES) -> Reader:
    """Read the rest of a string, decoded. Unknown escapes stay as they are.

    Args:
        add: called with each character.
        quote: character that ends the string.
        codes: the number of hexadecimal digits of escapes by their first character.
    """
    high = 0
    while True:
        char = yield
        end = char == quote
        unit = 0
        if char == "\\":
            char = yield
            if char in codes:
                unit = yield from _code(codes[char])
                char = chr(unit)
            else:
                char = quote if char == quote else _ESCAPES.get(char, "\\" + char)
        if high and 0xDC00 <= unit < 0xE000:
            char = chr(0x10000 + ((high - 0xD800) << 10) + (unit - 0xDC00))
            high = unit = 0
        elif high:
            add("\ufffd")
            high = 0
        if end:
            return
        if 0xD800 <= unit < 0xDC00:
            high = unit
        else:
            add("\ufffd" if 0xDC00 <= unit < 0xE000 else char)


def _code(length: int) -> Generator[None, str, int]:
    digits = ""
    while len(digits) < length:
        digit = yield
        if digit not in "0123456789abcdefABCDEF" or int(digits + digit, 16) > _MAX_CODE:
            raise MalformedError
        digits += digit
    return int(digits, 16)
