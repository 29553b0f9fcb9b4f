"""Tool-call readers for arguments written as XML, which they convert to JSON: the base, and blocks of `invoke` tags."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Generator, Mapping
from typing import NamedTuple

from openai_bls.output.tool_parsers.kinds import ALL_TYPES, NO_SCHEMA, Kind, ToolSchema, as_json
from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import (
    SPACE,
    CallReader,
    CharReader,
    MalformedError,
    Reader,
    after_space,
    expect,
)

Schemas = Mapping[str, ToolSchema]
"""The tools' `parameters` by name."""
KeyReader = Generator[None, str, tuple[str, Kind]]
"""A coroutine that reads an argument's name."""
_STRING = Kind(frozenset({"string"}))
_NO_STRING = Kind(ALL_TYPES - {"string"})


class XmlReader(CallReader):
    """Reads a call whose arguments are tags, which it converts to JSON.

    - A value that can only be a string, and any string, is streamed. Any other is sent when it is complete: as JSON if
      it is JSON of a type that the schema allows (`True`, `False` and `None` included), else as a string. Without a
      schema any type is allowed.
    - A value that is cut off is sent as far as it goes.

    Args:
        schemas: the tools' `parameters` by name.
        ends: what ends a value: its own tag, also with what may precede it but is not part of the value, or the next
            tag of the call where that is missing.
        padded: one line break after an argument's opening tag is not part of the value.
    """

    __slots__ = ("_ends", "_kind", "_padded", "_schemas", "_value")

    def __init__(self, schemas: Schemas, *, ends: tuple[str, ...], padded: bool = False) -> None:
        self._schemas = schemas
        self._ends = ends
        self._padded = padded
        # The kind of the current argument, and its text unless it is streamed.
        self._kind = Kind()
        self._value: list[str] | None = None
        super().__init__()

    def cut(self) -> None:
        """Add the incomplete value to the arguments."""
        if self._value is not None:
            text = "".join(self._value)
            self._arguments.append(json.dumps(text, ensure_ascii=False)[:-1] if "string" in self._kind.types else text)

    @abstractmethod
    def _key(self, schema: ToolSchema) -> KeyReader:
        """Read an argument's name, up to the value: its name and kind."""

    def _call(self, name: str, argument: str, end: str, read: str = "") -> Reader:
        """Read the arguments and the end of a call.

        Args:
            name: name of the function.
            argument: beginning of an argument's tag.
            end: end of the call.
            read: what is read of the next tag.
        """
        schema = self._schemas.get(name, NO_SCHEMA)
        if not read:
            expect((yield from after_space()), "<")
        tag = yield from self._literal(argument, end, read=read or "<")
        self.name = name
        self._begin("{")
        separator = ""
        while tag == argument:
            key, self._kind = yield from self._restored(self._key(schema), tag)
            self._arguments.append(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
            tag = (yield from self._read_value()).strip(SPACE)
            separator = ", "
            if tag not in (argument, end):
                expect((yield from after_space()), "<")
                tag = yield from self._literal(argument, end, read="<")
        self._arguments.append("}")

    def _restored(self, reader: KeyReader, read: str) -> KeyReader:
        """Read on with `reader`; if the text is malformed, all of it, from `read` on, is put back."""
        text = [read]
        next(reader)
        while True:
            char = yield
            try:
                reader.send(char)
            except StopIteration as stop:
                found: tuple[str, Kind] = stop.value
                return found
            except MalformedError:
                self.put_back = "".join(text)
                raise
            text.append(char)

    def _name_up_to(self, end: str, char: str = "") -> CharReader:
        """Read a name and the text `end` after it; `char` is its first character, if that is read."""
        name = ""
        if not char:
            char = yield
        while char not in "><\n" and char != end[0]:
            name += char
            char = yield
        expect(char if name.strip(SPACE) else "", end[0])
        yield from self._literal(end, read=char)
        return name.strip(SPACE)

    def _read_value(self) -> CharReader:
        """Read a value and what ends it, which is returned."""
        return (yield from self._value_up_to(self._ends))

    def _value_up_to(self, ends: tuple[str, ...], read: str = "") -> CharReader:
        """Read a value and one of `ends`, of which `read` has been read."""
        streamed = self._kind.is_text
        out: list[str] = []
        if streamed:
            self._arguments.append('"')
        else:
            self._value = out
        held = ""
        first = self._padded
        already = iter(read)
        while True:
            char = next(already, "")
            held += char or (yield)
            if first:
                first = False
                if held == "\n":
                    held = ""
                    continue
            if held in ends:
                break
            while held and not any(end.startswith(held) for end in ends):
                if streamed:
                    self._arguments.append(_escaped(held[0]))
                else:
                    out.append(held[0])
                held = held[1:]
        self._arguments.append('"' if streamed else as_json("".join(out), self._kind))
        self._value = None
        return held


class InvokeTags(NamedTuple):
    """The tags of a block of calls."""

    begin: str
    end: str
    call: str
    """Beginning of a call, up to the name."""
    end_call: str
    argument: str
    """Beginning of an argument, up to the name."""
    end_argument: str
    typed: bool = False
    """After the name there is `string="true"` or `string="false"`."""


class InvokeReader(XmlReader):
    """Reads the next call of a block, or the block's end. The values are verbatim. Quotes around names may be missing
    unless tags are typed."""

    __slots__ = ("_follows", "_tags")

    def __init__(self, tags: InvokeTags, schemas: Schemas, *, follows: bool = False) -> None:
        self._tags = tags
        self._follows = follows
        super().__init__(schemas, ends=(tags.end_argument,))
        self.idle = follows

    def _block(self) -> Reader:
        tags = self._tags
        expect((yield from after_space()), "<")
        call = tags.call.rstrip('"')
        if (yield from self._literal(call, *([tags.end] if self._follows else []), read="<")) == tags.end:
            return
        self.idle = False
        name = yield from self._name()
        yield from self._call(name, tags.argument if tags.typed else tags.argument.rstrip('"'), tags.end_call)

    def _name(self) -> CharReader:
        """Read a name and the end of its tag."""
        char = yield
        if char == '"':
            return (yield from self._name_up_to('">'))
        return (yield from self._name_up_to(">", char))

    def _key(self, schema: ToolSchema) -> KeyReader:
        if not self._tags.typed:
            key = yield from self._name()
            return key, schema.property_kind(key)
        key = yield from self._name_up_to('" string="')
        string = yield from self._literal('true">', 'false">')
        return key, _STRING if string.startswith("true") else _NO_STRING

    def following(self) -> CallReader:
        """The next call."""
        return InvokeReader(self._tags, self._schemas, follows=True)


def invokes(tags: InvokeTags, schemas: Schemas) -> Syntax:
    """Syntax of a block of calls in such tags."""
    return Syntax(lambda _: InvokeReader(tags, schemas), begins=(tags.begin,), closers=(tags.end,))


def _escaped(char: str) -> str:
    return json.dumps(char, ensure_ascii=False)[1:-1]
