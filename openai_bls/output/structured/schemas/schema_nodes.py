"""Checked JSON schemas: their parts, the types of their values, and whether they have instances that end."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

from openai_bls.output.structured.errors import FormatError
from openai_bls.output.structured.grammars import bounds
from openai_bls.output.structured.grammars.bounds import Gates
from openai_bls.output.structured.schemas import keywords

Schema = dict[str, Any]

PREFIX = "#/$defs/"
# Schemas within one another, each reference followed once.
_MAX_DEPTH = 500
# Alternatives of `oneOf` that are compared with one another, in all of a schema, and values and tags of theirs.
_MAX_PAIRS = 20_000
_MAX_COMPARED = 1_000_000


def open_names(node: Any) -> bool:
    """True if a checked schema declares some names and leaves others free."""
    if isinstance(node, list):
        return any(map(open_names, node))
    if not isinstance(node, dict):
        return False
    declares = "properties" in node or "patternProperties" in node
    return (declares and node.get("additionalProperties") is not False) or any(map(open_names, subschemas(node)))


def subschemas(node: Any) -> Iterator[Any]:
    """The schemas directly within one, `$defs` included."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("items", "additionalProperties"):
                yield value
            elif key in ("allOf", "anyOf", "oneOf", "prefixItems"):
                yield from value
            elif key in ("properties", "patternProperties", "$defs"):
                yield from value.values()


def comparable(value: Any) -> Hashable:
    """Something to hash and compare in a value's stead, by JSON's equality: 1 is 1.0 but not true."""
    if isinstance(value, list):
        return ("array", tuple(map(comparable, value)))
    if isinstance(value, dict):
        return frozenset((key, comparable(part)) for key, part in value.items())
    return ("boolean", value) if isinstance(value, bool) else value


def type_of(value: Any) -> set[str]:
    """The types of a JSON value."""
    match value:
        case bool():
            return {"boolean"}
        case None:
            return {"null"}
        case int() | float():
            return {"integer", "number"} if float(value).is_integer() else {"number"}
        case str():
            return {"string"}
        case list():
            return {"array"}
    return {"object"}


def check_depth(schema: Schema) -> None:
    """Refuse a schema that nests too deeply.

    Raises:
        FormatError: it does.
    """
    uses: dict[str, set[str]] = {}
    heights = {
        name: _height(node, uses.setdefault(name, set()))
        for name, node in {**schema.get("$defs", {}), "": {**schema, "$defs": {}}}.items()
    }
    if bounds.depth(heights, uses) > _MAX_DEPTH:
        raise FormatError(f"the schema is nested too deeply: over {_MAX_DEPTH} levels with what '$ref' leads to")


def _height(node: Any, used: set[str]) -> int:
    """Schemas within one another. Adds the definitions that it uses to `used`."""
    if isinstance(node, dict) and "$ref" in node:
        used.add(node["$ref"].removeprefix(PREFIX))
    return 1 + max((_height(part, used) for part in subschemas(node)), default=0)


def _declared(node: Schema) -> list[str]:
    types = node.get("type", keywords.TYPES)
    return [types] if isinstance(types, str) else list(types)


def check_ends(schema: Schema) -> None:
    """Refuse a schema of which a part has no instance that ends: generation could never leave it.

    `{"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}` has none.
    """
    gates = Gates()
    definitions = schema.get("$defs", {})
    names = {name: gates.any_of(()) for name in definitions}

    def gate(node: Any) -> int:
        """A gate that is open if the schema has a finite instance."""
        if isinstance(node, bool):
            return gates.always if node else gates.never
        declared = {name: gate(part) for name, part in node.get("properties", {}).items()}
        others = [*node.get("patternProperties", {}).values(), node.get("additionalProperties", True)]
        other = gates.any_of([gate(part) for part in others])
        first = [gate(part) for part in node.get("prefixItems", [])]
        least = node.get("minItems", 0)
        items = gate(node.get("items", True))
        of_type = {
            "object": gates.all_of([declared.get(name, other) for name in node.get("required", ())]),
            "array": gates.all_of(first[:least] + ([] if least <= len(first) else [items])),
        }
        parts = [gates.any_of([of_type.get(name, gates.always) for name in _declared(node)])]
        parts += [gate(part) for part in node.get("allOf", ())]
        parts += [gates.any_of([gate(part) for part in node[key]]) for key in ("anyOf", "oneOf") if key in node]
        if "$ref" in node:
            parts.append(names[node["$ref"].removeprefix(PREFIX)])
        return gates.never if node.get("enum") == [] else gates.all_of(parts)

    for name, node in definitions.items():
        gates.add(names[name], gate(node))
    whole = gate({key: value for key, value in schema.items() if key != "$defs"})
    ends = gates.settle()
    if not ends[whole] or not all(ends[names[name]] for name in definitions):
        which = "" if not ends[whole] else ", or something that '$ref' leads to,"
        raise FormatError(f"the JSON schema{which} has no instance that ends: nothing would match")


def settle_alternatives(schema: Schema) -> None:
    """Turn each `oneOf` whose alternatives exclude one another into `anyOf`."""
    _Alternatives(schema).settle()


class _Told(NamedTuple):
    """What an alternative says of its instances."""

    types: set[str]
    values: frozenset[Hashable] | None
    """Values of its enumeration; None without one."""
    tags: dict[str, frozenset[Hashable]]
    """Values of the properties that must be there and are of an enumeration."""


class _Alternatives:
    """`oneOf` as `anyOf` wherever no instance is allowed by two of the alternatives, as far as types, values and tags
    tell."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._pairs = self._compared = 0
        # By the identity of a node of the schema, or of an enumeration's list.
        self._told: dict[int, _Told] = {}
        self._values: dict[int, frozenset[Hashable]] = {}

    def settle(self, node: Any = None) -> None:
        node = self._schema if node is None else node
        if isinstance(node, dict) and "oneOf" in node and "anyOf" not in node:
            parts = node["oneOf"]
            self._pairs += len(parts) * (len(parts) - 1) // 2
            if self._pairs <= _MAX_PAIRS and self._all_exclude([self._told_by(part) for part in parts]):
                node["anyOf"] = node.pop("oneOf")
        for part in subschemas(node):
            self.settle(part)

    def _all_exclude(self, parts: list[_Told]) -> bool:
        """True if each of the alternatives excludes each other one, unless that takes too long to find out."""
        for at, one in enumerate(parts):
            for other in parts[:at]:
                if self._compared > _MAX_COMPARED or not self._exclude(one, other):
                    return False
        return True

    def _exclude(self, one: _Told, other: _Told) -> bool:
        types = one.types & other.types
        if not types or (
            one.values is not None and other.values is not None and self._differ(one.values, other.values)
        ):
            return True
        # Objects with a tag each: a property that must be there and whose values differ.
        fewer, more = sorted((one.tags, other.tags), key=len)
        self._compared += len(fewer)
        return types == {"object"} and any(name in more and self._differ(fewer[name], more[name]) for name in fewer)

    def _differ(self, one: frozenset[Hashable], other: frozenset[Hashable]) -> bool:
        self._compared += min(len(one), len(other))
        return one.isdisjoint(other)

    def _told_by(self, node: Any) -> _Told:
        node = self._resolved(node)
        if id(node) not in self._told:
            properties = node.get("properties", {})
            named = (
                (name, self._resolved(properties[name])) for name in node.get("required", ()) if name in properties
            )
            tags = {name: self._values_of(part["enum"]) for name, part in named if "enum" in part}
            values = self._values_of(node["enum"]) if "enum" in node else None
            self._told[id(node)] = _Told(_types_of(node), values, tags)
        return self._told[id(node)]

    def _values_of(self, values: list[Any]) -> frozenset[Hashable]:
        if id(values) not in self._values:
            self._values[id(values)] = frozenset(map(comparable, values))
        return self._values[id(values)]

    def _resolved(self, node: Any) -> Schema:
        """The schema that a reference refers to, in a few steps; any other as it is."""
        for _ in range(8):
            if not isinstance(node, dict) or set(node) != {"$ref"}:
                break
            node = self._schema["$defs"][node["$ref"].removeprefix(PREFIX)]
        return node if isinstance(node, dict) else _ANYTHING


_ANYTHING: Schema = {}


def _types_of(node: Schema) -> set[str]:
    """The types that a schema allows at most; `integer` also where it is `number`."""
    if "enum" in node:
        return set().union(*map(type_of, node["enum"]))
    found = set(_declared(node))
    return found | {"integer"} if "number" in found else found
