"""Gemma 4 and FunctionGemma: names and values without quotes, but for strings, which stand between two delimiters.

As in::

<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:2,where:{x:[1,true]}}<tool_call|>
<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:2}<end_function_call>
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from openai_bls.output.tool_parsers.formats import NAME, Sign, ToolFormat
from openai_bls.output.tool_parsers.kinds import NO_SCHEMA, Kind, ToolSchema, as_json, schemas_of
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
from openai_bls.output.tool_parsers.xml import Schemas

KeyReader = Generator[None, str, tuple[str, str]]
"""A coroutine that reads a name and the first character of its value."""
_CALL = "call:"
_CLOSING = {"[": "]", "{": "}"}
_NO_NAME = frozenset("{}[]<>,:\n")
_LITERALS = Kind(frozenset({"number", "integer", "boolean", "null", "string"}))


class GemmaTexts(NamedTuple):
    """The texts of one of the two forms."""

    begin: str
    end: str
    quote: str
    """Delimiter before and after a string."""


GEMMA4 = GemmaTexts("<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTION_GEMMA = GemmaTexts("<start_function_call>", "<end_function_call>", "<escape>")


class GemmaReader(CallReader):
    """Reads `call:NAME{...}`, which it converts to JSON.

    - Strings are streamed, but where the schema allows no string for an argument: that is sent when it is complete, as
      what it stands for.
    - Any other value is JSON's number, boolean or null, else a string up to the comma or bracket that ends it.
    - The comma after a string may be missing. Names may stand between delimiters, too.
    """

    __slots__ = ("_quote", "_scalar", "_schemas", "_untold")

    def __init__(self, texts: GemmaTexts, schemas: Schemas) -> None:
        self._quote = texts.quote
        self._schemas = schemas
        # A value that is not complete, and the text of one that is sent as a whole.
        self._scalar: list[str] = []
        self._untold: list[str] = []
        super().__init__()

    def cut(self) -> None:
        """Add the incomplete value to the arguments."""
        self._arguments += self._scalar
        self._arguments += self._untold

    def _block(self) -> Reader:
        expect((yield from after_space()), _CALL[0])
        yield from self._literal(_CALL, read=_CALL[0])
        name = ""
        while (char := (yield)) not in _NO_NAME:
            name += char
        expect(char if name.strip(SPACE) else "", "{")
        self.name = name.strip(SPACE)
        self._begin("{")
        yield from self._members(self._schemas.get(self.name, NO_SCHEMA))

    def _members(self, schema: ToolSchema) -> Reader:
        """Read the rest of the arguments."""
        add = self._arguments.append
        # The brackets that are open, each as what closes it.
        open_ = ["}"]
        first = True
        char = yield from after_space()
        while True:
            if char == open_[-1]:
                add(open_.pop())
                if not open_:
                    return
                char = yield from after_space()
                first = False
                if char == ",":
                    char = yield from after_space()
                continue
            if not first:
                add(", ")
            kind = Kind()
            if open_[-1] == "}":
                key, char = yield from self._key(char)
                add(json.dumps(key, ensure_ascii=False) + ": ")
                if len(open_) == 1:
                    kind = schema.property_kind(key)
            elif char in ",}":
                raise MalformedError
            if char in _CLOSING:
                open_.append(_CLOSING[char])
                add(char)
                first = True
                char = yield from after_space()
                continue
            first = False
            char = yield from self._value(char, kind)

    def _key(self, char: str) -> KeyReader:
        """Read a name and the colon; return it and the first character of the value."""
        key: list[str] = []
        if char == "<":
            yield from self._string(key.append)
            char = yield from after_space()
        else:
            while char not in _NO_NAME:
                key.append(char)
                char = yield
        expect(char if key else "", ":")
        return "".join(key).strip(SPACE), (yield from after_space())

    def _value(self, char: str, kind: Kind) -> CharReader:
        """Read a string or a word; return the next character that is neither white space nor a comma."""
        if char == "<":
            if "string" in kind.types:
                self._arguments.append('"')
                yield from self._string(lambda char: self._arguments.append(json.dumps(char, ensure_ascii=False)[1:-1]))
                self._arguments.append('"')
            else:
                yield from self._string(self._untold.append)
                self._arguments.append(as_json("".join(self._untold), kind))
                self._untold.clear()
            char = yield from after_space()
        else:
            # What is no string ends at a marker, too.
            while char not in ",}]<":
                self._scalar.append(char)
                char = yield
            word = "".join(self._scalar).strip(SPACE)
            self._scalar.clear()
            self._arguments.append(as_json(word, _LITERALS))
            if char == "<":
                raise MalformedError
        return (yield from after_space()) if char == "," else char

    def _string(self, add: Callable[[str], None]) -> Reader:
        """Read the rest of a string whose delimiter has begun."""
        yield from self._literal(self._quote, read="<")
        held = ""
        while True:
            held += yield
            if held == self._quote:
                return
            while held and not self._quote.startswith(held):
                add(held[0])
                held = held[1:]


def gemma(texts: GemmaTexts, schemas: Schemas) -> Syntax:
    """Syntax of one of the two forms."""
    return Syntax(lambda _: GemmaReader(texts, schemas), begins=(texts.begin,), ends=(texts.end,))


def _format(name: str, texts: GemmaTexts) -> ToolFormat:
    def syntax(tools: Sequence[dict[str, Any]]) -> Syntax:
        return gemma(texts, schemas_of(tools))

    return ToolFormat(
        name,
        syntax,
        signs=(Sign((texts.begin, texts.end, texts.quote)),),
        begin=f"{texts.begin}{_CALL}{NAME}{{",
        end=f"}}{texts.end}",
        separator="",
        trigger=texts.begin,
        special=frozenset(texts),
        style=name,
    )


FORMATS = (_format("gemma4", GEMMA4), _format("functiongemma", FUNCTION_GEMMA))
