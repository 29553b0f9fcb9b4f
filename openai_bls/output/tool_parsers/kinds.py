"""Arguments that are written as plain text: the JSON types that a tool's schema allows, and the text as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from openai_bls.output.tool_parsers import python_literals
from openai_bls.output.tool_parsers.scanner import SPACE

ALL_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
_TYPE_NAMES = {
    type(None): ("null",),
    bool: ("boolean",),
    str: ("string",),
    int: ("integer", "number"),
    # And an integer, if it is a whole number.
    float: ("number",),
    list: ("array",),
    dict: ("object",),
}
# Chat templates write calls of earlier turns with Python's literals, so models write them, too.
_LITERALS = {"True": "true", "False": "false", "None": "null"}
_RESTRICTIONS = frozenset({"enum", "const", "pattern", "format"})
_MAX_DEPTH = 16
# Nodes of a schema that one look at it visits: what a parameter's kind is, for example.
_MAX_NODES = 2_000


class Kind(NamedTuple):
    """The JSON types that a schema allows for a value."""

    types: frozenset[str] = ALL_TYPES
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


class _Members(NamedTuple):
    """Schemas of what is in the values that a part of a schema allows."""

    properties: tuple[Mapping[str, Any], ...] = ()
    """Those of members by name; the first that has a name counts."""
    others: Mapping[str, Any] = {}
    """That of other members."""
    items: Mapping[str, Any] = {}


class Work:
    """Work that the schemas of one request's tools may cost together, on the event loop: a tenth of a second."""

    def __init__(self) -> None:
        self.nodes_left = 16 * _MAX_NODES


class ToolSchema:
    """JSON schema of one tool's arguments. What it says of a value is worked out when that is first asked for, and
    kept, so that all calls and choices of a request together cost one look. The schema may not change.

    Args:
        root: the schema.
        work: work of the request that has the tool; by itself a schema has its own.
    """

    __slots__ = ("_kinds", "_of_lists", "_of_members", "_root", "_targets", "_work")

    def __init__(self, root: Mapping[str, Any], work: Work | None = None) -> None:
        self._root = root
        self._work = work or Work()
        # By the identity of a schema, which is a part of the root, or of a list in one.
        self._kinds: dict[int, Kind] = {}
        self._of_members: dict[int, _Members] = {}
        self._of_lists: dict[int, frozenset[str]] = {}
        self._targets: dict[str, Any] = {}

    def property_kind(self, key: str) -> Kind:
        """The kind of one argument; any kind if the schema is too large or too deep."""
        properties = self._root.get("properties")
        return self.kind(properties[key]) if isinstance(properties, dict) and key in properties else Kind()

    def kind(self, schema: Any) -> Kind:
        """The kind of what a part of the schema allows; any kind if it is too large or too deep."""
        if not schema or not isinstance(schema, dict):
            return Kind()
        found = self._kinds.get(id(schema))
        if found is None:
            found = self._kinds[id(schema)] = _Kinds(self).of(schema, 0)
        return found

    def argument(self, key: str) -> Any:
        """The schema of one argument; {} if it says nothing of it."""
        return self.member(self._root, key)

    def member(self, schema: Any, key: str) -> Any:
        """The schema of one member of the objects that a part of the schema allows; {} if it says nothing of it."""
        parts = self._members(schema)
        return next((properties[key] for properties in parts.properties if key in properties), parts.others)

    def items(self, schema: Any) -> Any:
        """The schema of the items of the arrays that a part of the schema allows; {} if it says nothing of them."""
        return self._members(schema).items

    def _members(self, schema: Any) -> _Members:
        if not schema or not isinstance(schema, dict):
            return _Members()
        found = self._of_members.get(id(schema))
        if found is None:
            parts = list(self._parts(schema))
            by_id = {id(named): named for part in parts if isinstance(named := part.get("properties"), dict)}
            others = (found for part in parts if isinstance(found := part.get("additionalProperties"), dict))
            items = (found for part in parts if isinstance(found := part.get("items"), dict))
            found = _Members(tuple(by_id.values()), next(others, {}), next(items, {}))
            self._of_members[id(schema)] = found
        return found

    def _parts(self, schema: Any) -> Iterator[Mapping[str, Any]]:
        """A part of the schema, and those that it is made of."""
        found, at = [schema], 0
        while at < len(found) and self.take_node(at):
            node, at = found[at], at + 1
            if not isinstance(node, dict):
                continue
            yield node
            if isinstance(reference := node.get("$ref"), str):
                found.append(self.target(reference))
            for key in ("anyOf", "oneOf", "allOf"):
                found += node[key][: max(0, _MAX_NODES - len(found))] if isinstance(node.get(key), list) else []

    def take_node(self, taken: int) -> bool:
        """Count a further node; False if one look has had too many, or all of them together."""
        self._work.nodes_left -= 1
        return taken < _MAX_NODES and self._work.nodes_left >= 0

    def types_named(self, names: list[Any]) -> frozenset[str]:
        """The types in the list of a `type`."""
        found = self._of_lists.get(id(names))
        if found is None:
            found = ALL_TYPES.intersection(name for name in names if isinstance(name, str))
            self._of_lists[id(names)] = found
        return found

    def types_in(self, values: list[Any]) -> frozenset[str]:
        """The types of the values of an `enum`."""
        found = self._of_lists.get(id(values))
        if found is None:
            found = self._of_lists[id(values)] = _types_of(*values)
        return found

    def target(self, reference: str) -> Any:
        """What a `$ref` points to; None if it is not a part of the schema."""
        if reference not in self._targets:
            self._targets[reference] = _resolve(self._root, reference)
        return self._targets[reference]


NO_SCHEMA = ToolSchema({})
"""Schema of a function that is not offered."""


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> dict[str, ToolSchema]:
    """The JSON schemas of the parameters of a request's tools by name; for a tool without one it says nothing."""
    work = Work()
    return {tool["function"]["name"]: ToolSchema(tool["function"].get("parameters") or {}, work) for tool in tools}


class _Kinds:
    """One look at a schema, which visits each reference once."""

    def __init__(self, schema: ToolSchema) -> None:
        self._schema = schema
        self._nodes = 0
        self._is_over = False
        # By reference; None while it is being followed.
        self._referred: dict[str, Kind | None] = {}

    def of(self, schema: Any, depth: int) -> Kind:
        self._nodes += 1
        if not self._schema.take_node(self._nodes - 1):
            self._is_over = True
        if self._is_over or not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return Kind()
        kind = Kind(restricted=any(name in schema for name in _RESTRICTIONS))
        if isinstance(reference := schema.get("$ref"), str):
            kind = kind.only(self._of_reference(reference, depth))
        declared = schema.get("type")
        if isinstance(declared, str):
            kind = kind.only(Kind(frozenset({declared})))
        elif isinstance(declared, list):
            kind = kind.only(Kind(self._schema.types_named(declared)))
        for choices in (schema.get("anyOf"), schema.get("oneOf")):
            if isinstance(choices, list) and choices:
                kinds = self._of_all(choices, depth)
                types = frozenset(name for choice in kinds for name in choice.types)
                kind = kind.only(Kind(types, any(choice.restricted for choice in kinds)))
        parts = schema.get("allOf")
        for part in self._of_all(parts, depth) if isinstance(parts, list) else ():
            kind = kind.only(part)
        if "const" in schema:
            kind = kind.only(Kind(_types_of(schema["const"])))
        elif isinstance(values := schema.get("enum"), list):
            kind = kind.only(Kind(self._schema.types_in(values)))
        return kind

    def _of_all(self, schemas: list[Any], depth: int) -> list[Kind]:
        """The kinds of some schemas, which end where they are too many: those that follow are of any kind, as the last
        one is said to be."""
        kinds: list[Kind] = []
        for schema in schemas:
            kinds.append(self.of(schema, depth + 1))
            if self._is_over:
                break
        return kinds

    def _of_reference(self, reference: str, depth: int) -> Kind:
        if reference not in self._referred:
            self._referred[reference] = None
            self._referred[reference] = self.of(self._schema.target(reference), depth + 1)
        # A reference to itself restricts nothing.
        return self._referred[reference] or Kind()


def _resolve(root: Mapping[str, Any], reference: str) -> Any:
    place: Any = root if reference.startswith("#/") else None
    at = 1
    # Step by step: a reference may be long, and its first steps lead nowhere.
    while at >= 0 and isinstance(place, dict):
        end = reference.find("/", at + 1)
        step = reference[at + 1 : end if end >= 0 else len(reference)]
        place = place.get(step.replace("~1", "/").replace("~0", "~"))
        at = end
    return place if at < 0 else None


def as_json(text: str, kind: Kind) -> str:
    """A value as JSON: of its own type if the kind allows that, else a string."""
    stripped = text.strip(SPACE)
    written = _LITERALS.get(stripped, stripped)
    if _is_json(written, kind):
        return written
    if "string" not in kind.types and stripped[:1] in ("{", "["):
        # Templates write an object of an earlier turn as Python does.
        converted = python_literals.as_json(stripped)
        if converted is not None and _is_json(converted, kind):
            return converted
    return json.dumps(stripped if kind.restricted else text, ensure_ascii=False)


def _is_json(text: str, kind: Kind) -> bool:
    """True if a text is JSON of a type that the kind allows."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    # Quotes are part of a string's text unless the kind allows no string.
    return bool(kind.types & _types_of(value)) if not isinstance(value, str) else "string" not in kind.types


def _types_of(*values: Any) -> frozenset[str]:
    # An enum may have hundreds of thousands.
    found = set(map(type, values))
    names = {name for kind in found for name in _TYPE_NAMES[kind]}
    if float in found and any(value.is_integer() for value in values if type(value) is float):
        names.add("integer")
    return frozenset(names)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
