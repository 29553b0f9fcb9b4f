"""Tool calls in XML, as Qwen3-Coder and Seed-OSS write them, told as JSON.

The model writes each argument as plain text::

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>

and only the tool's schema says what kind of value the text is.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import SPACE, CallReader, MalformedError, after_space, expect

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from openai_bls.output.tool_parsers.scanner import Reader

_FUNCTION = "<function="
_END_FUNCTION = "</function>"
_PARAMETER = "<parameter="
_END_PARAMETER = "</parameter>"
_ALL_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
_TYPE_NAMES = {type(None): "null", bool: "boolean", str: "string", list: "array", dict: "object"}
# The templates write calls of earlier turns by Python's rules, so models have learned these as well.
_LITERALS = {"True": "true", "False": "false", "None": "null"}
_RESTRICTIONS = frozenset({"enum", "const", "pattern", "format"})
_MAX_DEPTH = 16
# Of a schema that are looked at for one parameter.
_MAX_NODES = 2_000


class XmlCallReader(CallReader):
    """Reads what stands after `<tool_call>`, up to `</function>`.

    - One line break after the opening tag of a parameter and one before its closing tag are none of the value.
    - A value that may be any string, and nothing else, is told while it comes, any other when it is complete: it is
      the JSON that it reads as, if the schema allows that type (`True`, `False` and `None` are read, too), else a
      string. Where the schema is silent any JSON will do.
    - A value that is cut off is told as far as it goes.

    Args:
        outer: what has been read is `<tool_call>`, not `<function=`.
        schemas: the tools' `parameters`, by name.
    """

    __slots__ = ("_kind", "_outer", "_schemas", "_value")

    def __init__(self, *, outer: bool, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        self._outer = outer
        self._schemas = schemas
        # Of the parameter that is being read: its kind, and its text if it is told only when complete.
        self._kind = Kind()
        self._value: list[str] | None = None
        super().__init__()

    def cut(self) -> None:
        """Tell the value that is not complete."""
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
            told_tag: what stands before it, within a call that has been told. It goes back into the text with a name
                that is none; before that all of the block is content.
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
    """Of Qwen3-Coder, and of Seed-OSS with another outer tag. The outer tag may be missing."""
    return Syntax(
        lambda marker: XmlCallReader(outer=marker != _FUNCTION, schemas=schemas),
        begins=(f"<{outer}>", _FUNCTION),
        closers=(f"</{outer}>",),
    )


class Kind(NamedTuple):
    """What a schema says of a value."""

    types: frozenset[str] = _ALL_TYPES
    """JSON types that it may be of; all where the schema does not say."""
    restricted: bool = False
    """Not every string will do, and space around it is none of it."""

    @property
    def is_text(self) -> bool:
        """Any string, and nothing else: the value is what is written."""
        return self.types == {"string"} and not self.restricted

    def only(self, other: Kind) -> Kind:
        """What both allow."""
        return Kind(self.types & other.types, self.restricted or other.restricted)


def property_kind(schema: Mapping[str, Any], key: str) -> Kind:
    """What a schema of an object says of one of its members; nothing where it is too large or too deep to tell."""
    properties = schema.get("properties")
    if not isinstance(properties, dict) or key not in properties:
        return Kind()
    return _Kinds(schema).of(properties[key], 0)


class _Kinds:
    """Looks at each place of a schema once, however often references lead to it."""

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
        # What refers to itself says nothing by that.
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
    """A value's JSON text: what it reads as, if that is one of the kind's types, else a string."""
    stripped = text.strip(SPACE)
    written = _LITERALS.get(stripped, stripped)
    try:
        value = json.loads(written, parse_constant=_refuse)
    except (ValueError, RecursionError):
        pass
    else:
        # Quotes belong to a string's text, unless there is no other way to read it.
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
