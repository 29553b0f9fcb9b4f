"""Which parts of a schema in normal form have an instance that ends, and what xgrammar honours of them.

A grammar whose parts all have one can never be led to where it must go on for ever:
`{"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}` has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from openai_bls.output.structured import keywords, references
from openai_bls.output.structured.errors import FormatError
from openai_bls.output.structured.gates import Gates
from openai_bls.output.structured.leaves import comparable, type_of

Schema = dict[str, Any]

_PREFIX = "#/$defs/"
# Of alternatives that are compared with one another, in one `oneOf` and in all of a schema.
_MAX_PAIRS = 2_000
_MAX_ALL_PAIRS = 20_000
_XGRAMMAR_INTEGER = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_XGRAMMAR_TYPED = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "minItems", "maxItems", *_XGRAMMAR_INTEGER}
)
# Repetitions are written out in its grammars.
_XGRAMMAR_MAX_ITEMS = 1_000
# Of an object: any of them may be the next, which takes time and room for each pair.
_XGRAMMAR_MAX_OPTIONAL = 100


def pruned(schema: Schema) -> Schema:
    """The schema without alternatives, properties and items that have no instance.

    Raises:
        FormatError: the schema itself has none, or gets too deep.
    """
    references.check_depth(schema, _PREFIX)
    return _Pruner(schema).prune_root()


class _Pruner:
    def __init__(self, schema: Schema) -> None:
        self._schema: Schema = {key: value for key, value in schema.items() if key != "$defs"}
        self._definitions: Schema = schema.get("$defs", {})
        self._pairs = 0
        # By the identity of an enumeration's list.
        self._values: dict[int, frozenset[Any]] = {}
        self._gates = Gates()
        # By the identity of a schema, and with the type for one of its types: the gate that says whether there are
        # finite instances.
        self._gate_of: dict[int | tuple[int, str], int] = {}
        self._names = {name: self._gates.any_of(()) for name in self._definitions}
        for name, node in self._definitions.items():
            self._gates.add(self._names[name], self._gate(node))
        self._gate(self._schema)
        self._open = self._gates.settle()

    def prune_root(self) -> Schema:
        if not self._ends(self._schema):
            raise FormatError("the JSON schema has no instance that ends: nothing would match")
        found: Schema = self._pruned(self._schema)
        definitions = {name: self._pruned(node) for name, node in self._definitions.items() if self._ends(node)}
        return {"$defs": definitions, **found} if definitions else found

    def _ends(self, node: Any) -> bool:
        """Whether the schema has a finite instance."""
        return node if isinstance(node, bool) else self._open[self._gate_of[id(node)]]

    def _types(self, node: Schema) -> list[str]:
        """The types of which there are finite instances."""
        return [name for name in _declared(node) if self._open[self._gate_of[id(node), name]]]

    def _gate(self, node: Any) -> int:
        gates = self._gates
        if isinstance(node, bool):
            return gates.always if node else gates.never
        if id(node) in self._gate_of:
            return self._gate_of[id(node)]
        of_type = {"object": self._object_gate(node), "array": self._array_gate(node)}
        for name in _declared(node):
            self._gate_of[id(node), name] = of_type.get(name, gates.always)
        parts = [gates.any_of([of_type.get(name, gates.always) for name in _declared(node)])]
        parts += [self._gate(part) for part in node.get("allOf", ())]
        parts += [gates.any_of([self._gate(part) for part in node[key]]) for key in ("anyOf", "oneOf") if key in node]
        if "$ref" in node:
            parts.append(self._names[node["$ref"].removeprefix(_PREFIX)])
        if node.get("enum") == []:
            parts.append(gates.never)
        self._gate_of[id(node)] = gates.all_of(parts)
        return self._gate_of[id(node)]

    def _object_gate(self, node: Schema) -> int:
        declared = {name: self._gate(part) for name, part in node.get("properties", {}).items()}
        others = [*node.get("patternProperties", {}).values(), node.get("additionalProperties", True)]
        other = self._gates.any_of([self._gate(part) for part in others])
        return self._gates.all_of([declared.get(name, other) for name in node.get("required", ())])

    def _array_gate(self, node: Schema) -> int:
        first = [self._gate(part) for part in node.get("prefixItems", [])]
        least = node.get("minItems", 0)
        items = self._gate(node.get("items", True))
        return self._gates.all_of(first[:least] + ([] if least <= len(first) else [items]))

    def _exclusive(self, parts: list[Any]) -> bool:
        """Whether no instance is allowed by two of the schemas, as far as types, values and tags tell."""
        pairs = len(parts) * (len(parts) - 1) // 2
        self._pairs += pairs
        return max(pairs, self._pairs - (_MAX_ALL_PAIRS - _MAX_PAIRS)) <= _MAX_PAIRS and all(
            self._exclude(one, other) for at, one in enumerate(parts) for other in parts[:at]
        )

    def _exclude(self, one: Any, other: Any) -> bool:
        one, other = self._resolved(one), self._resolved(other)
        types = _types_of(one) & _types_of(other)
        if not types:
            return True
        if "enum" in one and "enum" in other:
            return self._disjoint(one["enum"], other["enum"])
        # Objects with a tag each: a property that must be there and whose values differ.
        tags = set(one.get("required", ())) & set(other.get("required", ()))
        return types == {"object"} and any(self._tags_differ(one, other, name) for name in tags)

    def _tags_differ(self, one: Schema, other: Schema, name: str) -> bool:
        values = [self._resolved(node.get("properties", {}).get(name, {})) for node in (one, other)]
        return all("enum" in value for value in values) and self._disjoint(values[0]["enum"], values[1]["enum"])

    def _disjoint(self, one: list[Any], other: list[Any]) -> bool:
        for values in (one, other):
            if id(values) not in self._values:
                self._values[id(values)] = frozenset(map(comparable, values))
        return self._values[id(one)].isdisjoint(self._values[id(other)])

    def _resolved(self, node: Any) -> Schema:
        """The schema that a reference refers to, in a few steps; any other as it is."""
        for _ in range(8):
            if not isinstance(node, dict) or set(node) != {"$ref"}:
                break
            node = self._definitions[node["$ref"].removeprefix(_PREFIX)]
        return node if isinstance(node, dict) else {}

    def _pruned(self, node: Any) -> Any:
        if isinstance(node, bool):
            return node
        if not self._ends(node):
            return False
        found = dict(node)
        types = self._types(node)
        if len(types) < len(keywords.TYPES) and types != node.get("type"):
            found["type"] = types[0] if len(types) == 1 else types
        for key in ("allOf", "anyOf", "oneOf"):
            if key in node:
                found[key] = [self._pruned(part) for part in node[key] if self._ends(part)]
        if "oneOf" in found and "anyOf" not in found and self._exclusive(found["oneOf"]):
            found["anyOf"] = found.pop("oneOf")
        if "properties" in node:
            closed = node.get("additionalProperties") is False and "patternProperties" not in node
            found["properties"] = {
                name: self._pruned(part) for name, part in node["properties"].items() if not closed or self._ends(part)
            }
        if "patternProperties" in node:
            found["patternProperties"] = {name: self._pruned(part) for name, part in node["patternProperties"].items()}
        if "additionalProperties" in node:
            found["additionalProperties"] = self._pruned(node["additionalProperties"])
        if "items" in node:
            found["items"] = self._pruned(node["items"])
        if "prefixItems" in node:
            first = node["prefixItems"]
            usable = next((at for at, part in enumerate(first) if not self._ends(part)), len(first))
            found["prefixItems"] = [self._pruned(part) for part in first[:usable]]
            if usable < len(first):
                found["maxItems"] = min(usable, node.get("maxItems", usable))
                found.pop("items", None)
        return found


def _types_of(node: Schema) -> set[str]:
    """The types that a schema allows at most; `integer` also where it is `number`."""
    if "enum" in node:
        return set().union(*map(type_of, node["enum"]))
    found = set(_declared(node))
    return found | {"integer"} if "number" in found else found


def _declared(node: Schema) -> list[str]:
    types = node.get("type", keywords.TYPES)
    return [types] if isinstance(types, str) else list(types)


def beyond_xgrammar(schema: Schema) -> str | None:
    """The first keyword that xgrammar would not honour in a pruned schema; None if it honours all."""
    parts = {key: value for key, value in schema.items() if key != "$defs"}
    for node in (parts, *schema.get("$defs", {}).values()):
        for found in _beyond(node):
            return found
    return None


def _beyond(node: Any) -> Iterator[str]:
    if node is True or not node:
        if node is False:
            yield "false"
        return
    alone = next((key for key in ("$ref", "anyOf", "enum") if key in node), None)
    if alone is not None:
        yield from (key for key in node if key != alone)
        for part in node.get("anyOf", ()):
            yield from _beyond(part)
        yield from _beyond_values(node.get("enum", ()))
        return
    yield from (key for key in node if key not in _XGRAMMAR_TYPED)
    types = node.get("type", [])
    if not types:
        yield from node
    if "number" in types:
        yield from (key for key in node if key in _XGRAMMAR_INTEGER)
    yield from _beyond_object(node)
    if max(node.get("minItems", 0), node.get("maxItems", 0)) > _XGRAMMAR_MAX_ITEMS:
        yield "maxItems"
    if "items" in node:
        if node["items"] is False:
            yield "items"
        else:
            yield from _beyond(node["items"])


def _beyond_object(node: Schema) -> Iterator[str]:
    declared = node.get("properties", {})
    if any(name not in declared for name in node.get("required", ())):
        yield "required"
    if len(declared) - len(node.get("required", ())) > _XGRAMMAR_MAX_OPTIONAL:
        yield "properties"
    others = node.get("additionalProperties", True)
    if declared and others is not False:
        yield "additionalProperties"
    if others is not False:
        yield from _beyond(others)
    for part in declared.values():
        yield from _beyond(part)


def _beyond_values(values: Any) -> Iterator[str]:
    """xgrammar writes numbers in its own way, exact for integers."""
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, dict | list):
            yield from _beyond_values(value)
        elif isinstance(value, float):
            yield "enum"
