"""JSON that a schema allows, as rules of a grammar, and the form of it that some models write tool calls in.

The language is that of xgrammar 0.2.8 for the same schema, as `engine/grammars.py` compiles it, with its mistakes in
strings put right: `json.dumps` writes it so, on one line, properties in the order of their declaration.

`qwen_xml` is its form for `<parameter=name>` tags: an object is a row of these, a string stands in one as it is,
without quotation marks and up to `</parameter>`, anything else as JSON, here with a white space character wherever JSON
may have some. Where nothing is said of an array's items xgrammar would have none there; here they are anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any
from typing import Literal as Constant

from openai_bls.output.structured import gbnf_numbers, gbnf_texts, keywords
from openai_bls.output.structured.charsets import complement
from openai_bls.output.structured.ebnf_tree import CharSet, Choice, Literal, Node, Repeat, Sequence
from openai_bls.output.structured.errors import FormatError
from openai_bls.output.structured.gbnf_numbers import DIGIT
from openai_bls.output.structured.gbnf_rules import EMPTY, Rules

Schema = dict[str, Any]
Level = Constant["json", "loose", "parameter", "parameters"]
"""How a value is written: as JSON with the spaces of `json.dumps`, as JSON with white space or without, as a parameter,
as a row of parameters."""

_PREFIX = "#/$defs/"
_PARAMETER_END = "</parameter>"
_PLAIN = CharSet(complement(((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C))))
_HEX = CharSet(((0x30, 0x39), (0x41, 0x46), (0x61, 0x66)))
_SPACE = Repeat(CharSet(((0x09, 0x0A), (0x0D, 0x0D), (0x20, 0x20))), 0, 1)
_NAME = Sequence(
    (
        CharSet(((0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))),
        Repeat(CharSet(((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))), 0, None),
    )
)


def json_text(rules: Rules, schema: Schema) -> Node:
    """The JSON texts that a schema allows.

    Args:
        rules: of the grammar that it is a part of.
        schema: in normal form, with nothing beyond xgrammar.
    """
    return _Writer(rules, schema).node(schema, "json")


def qwen_xml(rules: Rules, schema: Schema) -> Node:
    """What a schema allows, in the form `qwen_xml`. As for `json_text`."""
    return _Writer(rules, schema).node(schema, "parameters")


class _Writer:
    def __init__(self, rules: Rules, schema: Schema) -> None:
        self._rules = rules
        self._definitions: dict[str, Any] = schema.get("$defs", {})
        # Rules are shared by all parts of the grammar that mean the same: references do within one schema only.
        self._own = json.dumps(self._definitions) if self._definitions else ""

    def node(self, schema: Any, level: Level) -> Node:
        """What `schema` allows."""
        if schema is True or not set(schema) - {"$defs"}:
            return self._any(level)
        if schema is False:
            raise FormatError("nothing would match")
        if "$ref" in schema:
            name = schema["$ref"].removeprefix(_PREFIX)
            key = ("$ref", self._own, name, level)
            return self._rules.later(key, "ref", lambda: self.node(self._definitions[name], level))
        plain = {key: value for key, value in schema.items() if key != "$defs"}
        key = ("schema", self._own if '"$ref"' in json.dumps(plain) else "", json.dumps(plain), level)
        return self._rules.once(key, "value", lambda: self._node(plain, level))

    def _node(self, schema: Schema, level: Level) -> Node:
        if "anyOf" in schema:
            return Choice(tuple(self.node(part, level) for part in schema["anyOf"]))
        if "enum" in schema:
            return Choice(tuple(self._value(value, level) for value in schema["enum"]))
        types = schema.get("type", keywords.TYPES)
        names = [types] if isinstance(types, str) else types
        return Choice(tuple(self._of_type(schema, name, level) for name in names))

    def _any(self, level: Level) -> Node:
        match level:
            case "parameters":
                names: Iterable[str] = ("object",)
            case "parameter":
                # There a string is anything.
                names = ("string", "array", "object")
            case _:
                names = ("number", "string", "boolean", "null", "array", "object")

        def make() -> Node:
            return Choice(tuple(self._of_type({}, name, level) for name in names))

        return self._rules.once(("any", level), "any", make)

    def _of_type(self, schema: Schema, name: str, level: Level) -> Node:  # noqa: PLR0911
        if level == "parameters":
            if name != "object":
                raise FormatError("JSON that is written as XML is an object")
            return self._parameters(schema)
        match name:
            case "string":
                return self._string(level)
            case "integer":
                return _integer(schema)
            case "number":
                return self._rules.once("number", "number", _number)
            case "boolean":
                return Choice((Literal("true"), Literal("false")))
            case "null":
                return Literal("null")
        inner: Level = "loose" if level == "parameter" else level
        return self._array(schema, inner) if name == "array" else self._object(schema, inner)

    def _string(self, level: Level) -> Node:
        if level == "parameter":
            return self._text(ended=False)
        return Sequence((Literal('"'), self._rules.once("string", "string", lambda: _string_end(self._rules))))

    def _text(self, *, ended: bool) -> Node:
        """A string as a parameter, with the end of its tag or without."""

        def make() -> Node:
            if ended:
                return gbnf_texts.text(self._rules, [], ends=[_PARAMETER_END])
            return gbnf_texts.text(self._rules, [_PARAMETER_END])

        return self._rules.once(("text", ended), "text", make)

    def _array(self, schema: Schema, level: Level) -> Node:
        item = self.node(schema.get("items", True), level)
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        space, comma = _spaces(level)
        found: list[Node] = []
        if most != 0:
            further = Repeat(Sequence((comma, item)), max(least - 1, 0), None if most is None else most - 1)
            found.append(Sequence((Literal("["), space, item, further, space, Literal("]"))))
        if least == 0:
            found.append(Sequence((Literal("["), space, Literal("]"))))
        return Choice(tuple(found))

    def _object(self, schema: Schema, level: Level) -> Node:
        space, comma = _spaces(level)
        colon: Node = Literal(": ") if level == "json" else Sequence((_SPACE, Literal(":"), _SPACE))

        def pair(name: str, value: Any) -> Node:
            return Sequence((Literal(_dumped(name)), colon, self.node(value, level)))

        others = schema.get("additionalProperties", True)
        other = Sequence((self._string(level), colon, self.node(others, level))) if others is not False else None
        return Choice(
            tuple(
                Sequence((Literal("{"), space, inside, *([space] if inside != EMPTY else ()), Literal("}")))
                for inside in self._members(schema, comma, pair, other)
            )
        )

    def _parameters(self, schema: Schema) -> Node:
        def tag(name: Node, value: Any) -> Node:
            begin, end = Sequence((Literal("<parameter="), name, Literal(">"))), Literal(_PARAMETER_END)
            if isinstance(value, dict) and value.get("type") == "string":
                return Sequence((begin, self._text(ended=True)))
            return Sequence((begin, _SPACE, self.node(value, "parameter"), _SPACE, end))

        others = schema.get("additionalProperties", True)
        other = None if others is False else tag(_NAME, others)
        inside = self._members(schema, _SPACE, lambda name, value: tag(Literal(name), value), other)
        return Choice(tuple(_SPACE if part == EMPTY else Sequence((_SPACE, part, _SPACE)) for part in inside))

    def _members(self, schema: Schema, comma: Node, pair: Callable[[str, Any], Node], other: Node | None) -> list[Node]:
        """What an object may hold: something, nothing.

        Args:
            schema: of the object.
            comma: what stands between two members.
            pair: a member's name and value.
            other: a member that is not declared, of an object that declares none.
        """
        declared: dict[str, Any] = schema.get("properties", {})
        required = set(schema.get("required", ()))
        if not declared:
            if other is None:
                return [EMPTY]
            other = self._rules.add("member", other)
            return [Sequence((other, Repeat(Sequence((comma, other)), 0, None))), EMPTY]
        # From the last on: what may follow once there was a member, and all with no member before.
        following: Node = EMPTY
        first: list[Node] = []
        optional = True
        for name, value in reversed(declared.items()):
            member = self._rules.add("member", pair(name, value))
            if name in required:
                first, optional = [], False
            first.append(Sequence((member, following)))
            with_comma = Sequence((comma, member, following))
            rest = with_comma if name in required else Choice((with_comma, following))
            following = self._rules.add("rest", rest)
        return [Choice(tuple(reversed(first))), *([EMPTY] if optional else ())]

    def _value(self, value: Any, level: Level) -> Node:
        """A constant."""
        if level == "parameter":
            return Literal(value if isinstance(value, str) else _dumped(value))
        if level != "parameters":
            return Literal(_dumped(value))
        if not isinstance(value, dict):
            raise FormatError("JSON that is written as XML is an object")
        parts: list[Node] = []
        for name, part in value.items():
            parts += [_SPACE, Literal(f"<parameter={name}>"), _SPACE, self._value(part, "parameter"), _SPACE]
            parts.append(Literal(_PARAMETER_END))
        return Sequence((*parts, _SPACE))


def _spaces(level: Level) -> tuple[Node, Node]:
    """What may stand within brackets at their ends, and what stands between two items."""
    if level == "json":
        return EMPTY, Literal(", ")
    return _SPACE, Sequence((_SPACE, Literal(","), _SPACE))


def _dumped(value: Any) -> str:
    """A constant as xgrammar writes it: without spaces, and with DEL escaped."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("\x7f", "\\u007f")


def _integer(schema: Schema) -> Node:
    lows = [schema[key] + more for key, more in (("minimum", 0), ("exclusiveMinimum", 1)) if key in schema]
    highs = [schema[key] - less for key, less in (("maximum", 0), ("exclusiveMaximum", 1)) if key in schema]
    return gbnf_numbers.integers(max(lows, default=None), min(highs, default=None))


def _number() -> Node:
    digits = Repeat(DIGIT, 1, None)
    sign = Repeat(CharSet(((0x2B, 0x2B), (0x2D, 0x2D))), 0, 1)
    whole = Choice((Literal("0"), Sequence((gbnf_numbers.LEADING, Repeat(DIGIT, 0, None)))))
    exponent = Sequence((CharSet(((0x45, 0x45), (0x65, 0x65))), sign, digits))
    fraction = Sequence((Literal("."), digits))
    return Sequence((Repeat(Literal("-"), 0, 1), whole, Repeat(fraction, 0, 1), Repeat(exponent, 0, 1)))


def _string_end(rules: Rules) -> Node:
    """A string from its first quotation mark on. Only with escapes it gets any deeper."""
    high = CharSet(((0x30, 0x39), (0x41, 0x43), (0x45, 0x46), (0x61, 0x63), (0x65, 0x66)))
    d = CharSet(((0x44, 0x44), (0x64, 0x64)))
    pair = Sequence(
        (
            *(d, CharSet(((0x38, 0x39), (0x41, 0x42), (0x61, 0x62))), _HEX, _HEX, Literal("\\u")),
            *(d, CharSet(((0x43, 0x46), (0x63, 0x66))), _HEX, _HEX),
        )
    )
    point = Choice((Sequence((high, _HEX, _HEX, _HEX)), Sequence((d, CharSet(((0x30, 0x37),)), _HEX, _HEX)), pair))
    escape = rules.add(
        "escape",
        Choice((CharSet(tuple((ord(char), ord(char)) for char in '"/\\bfnrt')), Sequence((Literal("u"), point)))),
    )
    end = rules.reserve("string")
    tail = rules.add("tail", Choice((Literal('"'), Sequence((Literal("\\"), escape, end)))))
    return rules.define(end, Sequence((Repeat(_PLAIN, 0, None), tail)))
