"""Tool-call reader for XML (Qwen3-Coder, Seed-OSS), which converts arguments to JSON.

Each argument is plain text, whose type only the tool's schema says::

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Generator, Mapping
from typing import Any

from openai_bls.output.tool_parsers.kinds import Kind, as_json, property_kind
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

_FUNCTION = "<function="
_END_FUNCTION = "</function>"
_PARAMETER = "<parameter="
_END_PARAMETER = "</parameter>"
KeyReader = Generator[None, str, tuple[str, Kind]]
"""A coroutine that reads an argument's name."""


class XmlReader(CallReader):
    """Reads a call whose arguments are tags, which it converts to JSON.

    - A value that can only be a string, and any string, is streamed. Any other is sent when it is complete: as JSON if
      it is JSON of a type that the schema allows (`True`, `False` and `None` included), else as a string. Without a
      schema any type is allowed.
    - A value that is cut off is sent as far as it goes.

    Args:
        schemas: the tools' `parameters` by name.
        ends: the tag that ends a value, and what may precede it but is not part of the value.
        padded: one line break after an argument's opening tag is not part of the value.
    """

    __slots__ = ("_ends", "_kind", "_kinds", "_padded", "_schemas", "_value")

    def __init__(
        self, schemas: Mapping[str, Mapping[str, Any]], *, ends: tuple[str, ...], padded: bool = False
    ) -> None:
        self._schemas = schemas
        self._ends = ends
        self._padded = padded
        # The kind of the current argument, and its text unless it is streamed.
        self._kind = Kind()
        self._value: list[str] | None = None
        self._kinds: dict[str, Kind] = {}
        super().__init__()

    def cut(self) -> None:
        """Add the incomplete value to the arguments."""
        if self._value is not None:
            text = "".join(self._value)
            self._arguments.append(json.dumps(text, ensure_ascii=False)[:-1] if "string" in self._kind.types else text)

    def _kind_of(self, schema: Mapping[str, Any], key: str) -> Kind:
        if key not in self._kinds:
            self._kinds[key] = property_kind(schema, key)
        return self._kinds[key]

    @abstractmethod
    def _key(self, schema: Mapping[str, Any]) -> KeyReader:
        """Read an argument's name, up to the value: its name and kind."""

    def _call(self, name: str, argument: str, end: str, read: str = "") -> Reader:
        """Read the arguments and the end of a call.

        Args:
            name: name of the function.
            argument: beginning of an argument's tag.
            end: end of the call.
            read: the first character of the next tag, if it is read.
        """
        schema = self._schemas.get(name, {})
        if not read:
            expect((yield from after_space()), "<")
        tag = yield from self._literal(argument, end, read="<")
        self.name = name
        self._begin("{")
        separator = ""
        while tag == argument:
            key, self._kind = yield from self._restored(self._key(schema), tag)
            self._arguments.append(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
            yield from self._read_value()
            separator = ", "
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

    def _name_up_to(self, end: str) -> CharReader:
        """Read a name and the text `end` after it."""
        name = ""
        while (char := (yield)) not in "><\n" and char != end[0]:
            name += char
        expect(char if name.strip(SPACE) else "", end[0])
        yield from self._literal(end, read=char)
        return name.strip(SPACE)

    def _read_value(self) -> Reader:
        streamed = self._kind.is_text
        out: list[str] = []
        if streamed:
            self._arguments.append('"')
        else:
            self._value = out
        held = ""
        first = self._padded
        while True:
            held += yield
            if first:
                first = False
                if held == "\n":
                    held = ""
                    continue
            if held in self._ends:
                break
            while held and not any(end.startswith(held) for end in self._ends):
                if streamed:
                    self._arguments.append(_escaped(held[0]))
                else:
                    out.append(held[0])
                held = held[1:]
        self._arguments.append('"' if streamed else as_json("".join(out), self._kind))
        self._value = None


class XmlCallReader(XmlReader):
    """Reads the text after `<tool_call>`, up to `</function>`. One line break before a parameter's closing tag is not
    part of the value, either.

    Args:
        outer: the block began with `<tool_call>`, not `<function=`.
        schemas: the tools' `parameters` by name.
    """

    __slots__ = ("_outer",)

    def __init__(self, *, outer: bool, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        self._outer = outer
        super().__init__(schemas, ends=("\n" + _END_PARAMETER, _END_PARAMETER), padded=True)

    def _block(self) -> Reader:
        if self._outer:
            expect((yield from after_space()), "<")
            yield from self._literal(_FUNCTION, read="<")
        name = yield from self._name_up_to(">")
        yield from self._call(name, _PARAMETER, _END_FUNCTION)

    def _key(self, schema: Mapping[str, Any]) -> KeyReader:
        key = yield from self._name_up_to(">")
        return key, self._kind_of(schema, key)


def xml_calls(schemas: Mapping[str, Mapping[str, Any]], outer: str = "tool_call") -> Syntax:
    """Syntax of Qwen3-Coder, and of Seed-OSS with another outer tag. The outer tag is optional."""
    return Syntax(
        lambda marker: XmlCallReader(outer=marker != _FUNCTION, schemas=schemas),
        begins=(f"<{outer}>", _FUNCTION),
        closers=(f"</{outer}>",),
    )


def _escaped(char: str) -> str:
    return json.dumps(char, ensure_ascii=False)[1:-1]
