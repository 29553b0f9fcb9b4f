"""Arguments that are written as plain text: the JSON types that a tool's schema allows, and the text as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from openai_bls.output.tool_parsers import python_literals
from openai_bls.output.tool_parsers.scanner import SPACE

ALL_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
_TYPE_NAMES = {type(None): "null", bool: "boolean", str: "string", list: "array", dict: "object"}
# Chat templates write calls of earlier turns with Python's literals, so models write them, too.
_LITERALS = {"True": "true", "False": "false", "None": "null"}
_RESTRICTIONS = frozenset({"enum", "const", "pattern", "format"})
_MAX_DEPTH = 16
# Most nodes of a schema visited for one parameter.
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


def property_kind(schema: Mapping[str, Any], key: str) -> Kind:
    """The kind of one member of an object; any kind if the schema is too large or too deep."""
    properties = schema.get("properties")
    if not isinstance(properties, dict) or key not in properties:
        return Kind()
    return _Kinds(schema).of(properties[key], 0)


def kind_of(root: Mapping[str, Any], schema: Any) -> Kind:
    """The kind of what a part of the schema `root` allows; any kind if it is too large or too deep."""
    return _Kinds(root).of(schema, 0)


def member_schema(root: Mapping[str, Any], schema: Any, key: str) -> Any:
    """The schema of one member of the objects that a part of `root` allows; {} if it says nothing of it."""
    parts = list(_parts(root, schema))
    declared = [part["properties"] for part in parts if isinstance(part.get("properties"), dict)]
    others = (part["additionalProperties"] for part in parts if isinstance(part.get("additionalProperties"), dict))
    return next((properties[key] for properties in declared if key in properties), next(others, {}))


def items_schema(root: Mapping[str, Any], schema: Any) -> Any:
    """The schema of the items of the arrays that a part of `root` allows; {} if it says nothing of them."""
    return next((part["items"] for part in _parts(root, schema) if isinstance(part.get("items"), dict)), {})


def _parts(root: Mapping[str, Any], schema: Any) -> Iterator[Mapping[str, Any]]:
    """A schema, and those that it is made of."""
    found, at = [schema], 0
    while at < len(found) and at < _MAX_NODES:
        node, at = found[at], at + 1
        if not isinstance(node, dict):
            continue
        yield node
        if isinstance(reference := node.get("$ref"), str):
            found.append(_resolve(root, reference))
        for key in ("anyOf", "oneOf", "allOf"):
            found += node[key] if isinstance(node.get(key), list) else []


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


def _types_of(value: Any) -> frozenset[str]:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, int | float) and not isinstance(value, bool):
        return frozenset({"integer", "number"} if whole else {"number"})
    return frozenset({_TYPE_NAMES[type(value)]})


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
