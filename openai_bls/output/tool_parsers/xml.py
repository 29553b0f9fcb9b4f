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
from collections.abc import Generator, Mapping
from typing import Any, NamedTuple

from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import SPACE, CallReader, MalformedError, Reader, after_space, expect

_FUNCTION = "<function="
_END_FUNCTION = "</function>"
_PARAMETER = "<parameter="
_END_PARAMETER = "</parameter>"
_ALL_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
_TYPE_NAMES = {type(None): "null", bool: "boolean", str: "string", list: "array", dict: "object"}
# Chat templates write calls of earlier turns with Python's literals, so models write them, too.
_LITERALS = {"True": "true", "False": "false", "None": "null"}
_RESTRICTIONS = frozenset({"enum", "const", "pattern", "format"})
_MAX_DEPTH = 16
# Most nodes of a schema visited for one parameter.
_MAX_NODES = 2_000


class XmlCallReader(CallReader):
    """Reads the text after `<tool_call>`, up to `</function>`.

    - One line break after a parameter's opening tag and one before its closing tag are not part of the value.
    - A value that can only be a string, and any string, is streamed. Any other is sent when it is complete: as JSON if
      it is JSON of a type that the schema allows (`True`, `False` and `None` included), else as a string. Without a
      schema any type is allowed.
    - A value that is cut off is sent as far as it goes.

    Args:
        outer: the block began with `<tool_call>`, not `<function=`.
        schemas: the tools' `parameters` by name.
    """

    __slots__ = ("_kind", "_outer", "_schemas", "_value")

    def __init__(self, *, outer: bool, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        self._outer = outer
        self._schemas = schemas
        # The kind of the current parameter, and its text unless it is streamed.
        self._kind = Kind()
        self._value: list[str] | None = None
        super().__init__()

    def cut(self) -> None:
        """Add the incomplete value to the arguments."""
        if self._value is not None:
            text = "".join(self._value)
            self._arguments.append(json.dumps(text, ensure_ascii=False)[:-1] if "string" in self._kind.types else text)

    def _block(self) -> Reader:
        if self._outer:
            expect((yield from after_space()), "<")
            yield from self._literal(_FUNCTION, read="<")
        name = yield from self._tag_name()
        schema = self._schemas.get(name, {})
        expect((yield from after_space()), "<")
        tag = yield from self._literal(_PARAMETER, _END_FUNCTION, read="<")
        self.name = name
        self._begin("{")
        separator = ""
        kinds: dict[str, Kind] = {}
        while tag == _PARAMETER:
            key = yield from self._tag_name(tag)
            self._arguments.append(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
            self._kind = kinds[key] if key in kinds else property_kind(schema, key)
            kinds[key] = self._kind
            yield from self._read_value()
            separator = ", "
            expect((yield from after_space()), "<")
            tag = yield from self._literal(_PARAMETER, _END_FUNCTION, read="<")
        self._arguments.append("}")

    def _tag_name(self, told_tag: str = "") -> Generator[None, str, str]:
        """Read up to `>`.

        Args:
            told_tag: text before the name, within a call that has started; put back with a malformed name. Before
                the start all of the block is content.
        """
        name = ""
        while (char := (yield)) not in "><\n":
            name += char
        if char != ">" or not name.strip(SPACE):
            self.put_back = told_tag + name if told_tag else ""
            raise MalformedError
        return name.strip(SPACE)

    def _read_value(self) -> Reader:
        streamed = self._kind.is_text
        out: list[str] = []
        if streamed:
            self._arguments.append('"')
        else:
            self._value = out
        held = ""
        first = True
        while True:
            held += yield
            if first:
                first = False
                if held == "\n":
                    held = ""
                    continue
            if held in _ENDS:
                break
            while held and not any(end.startswith(held) for end in _ENDS):
                if streamed:
                    self._arguments.append(_escaped(held[0]))
                else:
                    out.append(held[0])
                held = held[1:]
        self._arguments.append('"' if streamed else as_json("".join(out), self._kind))
        self._value = None


_ENDS = ("\n" + _END_PARAMETER, _END_PARAMETER)


def xml_calls(schemas: Mapping[str, Mapping[str, Any]], outer: str = "tool_call") -> Syntax:
    """Syntax of Qwen3-Coder, and of Seed-OSS with another outer tag. The outer tag is optional."""
    return Syntax(
        lambda marker: XmlCallReader(outer=marker != _FUNCTION, schemas=schemas),
        begins=(f"<{outer}>", _FUNCTION),
        closers=(f"</{outer}>",),
    )


class Kind(NamedTuple):
    """The JSON types that a schema allows for a value."""

    types: frozenset[str] = _ALL_TYPES
    """All types if the schema names none."""
    restricted: bool = False
    """Only some strings are allowed, and white space around them is dropped."""

    @property
    def is_text(self) -> bool:
        """True if any string is allowed, and nothing else."""
        return self.types == {"string"} and not self.restricted

    def only(self, other: Kind) -> Kind:
        """The types that both allow."""
        return Kind(self.types & other.types, self.restricted or other.restricted)


def property_kind(schema: Mapping[str, Any], key: str) -> Kind:
    """The kind of one member of an object; any kind if the schema is too large or too deep."""
    properties = schema.get("properties")
    if not isinstance(properties, dict) or key not in properties:
        return Kind()
    return _Kinds(schema).of(properties[key], 0)


class _Kinds:
    """Visits each reference of a schema once."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._nodes = 0
        # By reference; None while it is being followed.
        self._referred: dict[str, Kind | None] = {}

    def of(self, schema: Any, depth: int) -> Kind:
        self._nodes += 1
        if not isinstance(schema, dict) or depth > _MAX_DEPTH or self._nodes > _MAX_NODES:
            return Kind()
        kind = Kind(restricted=not _RESTRICTIONS.isdisjoint(schema))
        if isinstance(reference := schema.get("$ref"), str):
            kind = kind.only(self._of_reference(reference, depth))
        declared = schema.get("type")
        if isinstance(declared, str):
            declared = [declared]
        if isinstance(declared, list):
            kind = kind.only(Kind(frozenset(name for name in declared if isinstance(name, str))))
        for choices in (schema.get("anyOf"), schema.get("oneOf")):
            if isinstance(choices, list) and choices:
                kinds = [self.of(choice, depth + 1) for choice in choices]
                types = frozenset(name for choice in kinds for name in choice.types)
                kind = kind.only(Kind(types, any(choice.restricted for choice in kinds)))
        parts = schema.get("allOf")
        for part in parts if isinstance(parts, list) else ():
            kind = kind.only(self.of(part, depth + 1))
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list):
            kind = kind.only(Kind(frozenset(name for value in values for name in _types_of(value))))
        return kind

    def _of_reference(self, reference: str, depth: int) -> Kind:
        if reference not in self._referred:
            self._referred[reference] = None
            self._referred[reference] = self.of(_resolve(self._root, reference), depth + 1)
        # A reference to itself restricts nothing.
        return self._referred[reference] or Kind()


def _resolve(root: Mapping[str, Any], reference: str) -> Any:
    if not reference.startswith("#/"):
        return None
    place: Any = root
    for step in reference[2:].split("/"):
        if not isinstance(place, dict):
            return None
        place = place.get(step.replace("~1", "/").replace("~0", "~"))
    return place


def as_json(text: str, kind: Kind) -> str:
    """A value as JSON: of its own type if the kind allows that, else a string."""
    stripped = text.strip(SPACE)
    written = _LITERALS.get(stripped, stripped)
    try:
        value = json.loads(written, parse_constant=_refuse)
    except (ValueError, RecursionError):
        pass
    else:
        # Quotes are part of a string's text unless the kind allows no string.
        if kind.types & _types_of(value) if not isinstance(value, str) else "string" not in kind.types:
            return written
    return json.dumps(stripped if kind.restricted else text, ensure_ascii=False)


def _types_of(value: Any) -> frozenset[str]:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, int | float) and not isinstance(value, bool):
        return frozenset({"integer", "number"} if whole else {"number"})
    return frozenset({_TYPE_NAMES[type(value)]})


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _escaped(char: str) -> str:
    return json.dumps(char, ensure_ascii=False)[1:-1]
