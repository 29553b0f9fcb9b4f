"""Reader of JSON schemas: normalised to the form that llguidance and xgrammar read alike, every keyword checked.

References point into `$defs` only, patterns are plain, `items` is one schema, keywords that say nothing are gone.
Three choices where a schema leaves a choice; all narrow what is generated, so that it validates all the same:

- an object that declares properties and says nothing of others gets no others, as in OpenAI's strict mode. Not
  where schemas are combined (`allOf`, keywords beside `$ref` or `anyOf`), as each may declare some of them;
- a schema without `type` whose keywords speak of one type is of that type;
- properties come in the order in which they are declared.

Keywords, and formats of strings, that JSON schema does not know are annotations, unless the schema is to be `strict`.
OpenAPI's `nullable` allows null as well.

What is wrong in itself (types of values, bounds that cross) is llguidance's to refuse, unless it lets it pass.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from openai_bls.output.structured import patterns
from openai_bls.output.structured.errors import FormatError, cut, shown
from openai_bls.output.structured.grammars import bounds
from openai_bls.output.structured.schemas import keywords
from openai_bls.output.structured.schemas.schema_nodes import (
    PREFIX,
    Schema,
    check_depth,
    check_ends,
    comparable,
    settle_alternatives,
    type_of,
)

# Subschemas, counted once for each place and each way to combine them.
_MAX_NODES = 20_000
# Of all patterns together.
_MAX_PATTERN_CHARS = 512 * 1024
# The largest integer up to which JSON readers and both libraries are exact.
_MAX_NUMBER = 2**53
_MAX_LENGTH = 100_000
_INDEX = re.compile(r"[0-9]{1,9}")
_KNOWN = {"type", *keywords.APPLICATORS, *keywords.VALUES}.union(*keywords.OF_TYPE.values())


class Place:
    """Path of a subschema, for messages: `properties.tags.items`."""

    def __init__(self, *steps: str) -> None:
        self._steps = steps

    def __truediv__(self, step: object) -> Place:
        return Place(*self._steps, str(step))

    def __str__(self) -> str:
        steps = [cut(step, 30) for step in self._steps]
        if len(steps) > 8:
            steps = [*steps[:3], "…", *steps[-4:]]
        return f" (at '{'.'.join(steps)}')" if steps else ""


def checked(schema: Any, *, strict: bool = False) -> Schema:
    """A schema whose nesting is bounded, with all its keywords honoured or refused.

    Args:
        schema: JSON schema of the client.
        strict: refuse keywords that JSON schema does not know; else they are annotations.

    Raises:
        FormatError: it is no JSON schema, has what cannot be enforced, or no instance; the message says where.
    """
    found = _Reader(schema, strict).read_all()
    check_depth(found)
    check_ends(found)
    bounds.check_joined(found)
    bounds.check_multiples(found)
    settle_alternatives(found)
    return found


class _Reader:
    def __init__(self, root: Any, strict: bool) -> None:
        self._root = root
        self._strict = strict
        self._nodes = 0
        self._pattern_chars = 0
        # By pointer and whether other schemas are combined with it: the name in `$defs`.
        self._names: dict[tuple[str, bool], str] = {}
        self._waiting: list[tuple[str, bool]] = []
        # By the identity of a part of `root`.
        self._referring: dict[int, bool] = {}

    def read_all(self) -> Schema:
        found = self._read(self._root, Place(), False)
        definitions: Schema = {}
        while self._waiting:
            pointer, combined = self._waiting.pop()
            place = Place(*(step for step in pointer.split("/") if step != "#"))
            definitions[self._names[pointer, combined]] = self._read(self._target(pointer, place), place, combined)
        return {"$defs": definitions, **found} if definitions else found

    def _read(self, node: Any, place: Place, combined: bool) -> Schema:
        """One schema; `combined`: an instance must match other schemas as well."""
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise FormatError(f"the schema is too large: over {_MAX_NODES} parts")
        if isinstance(node, bool):
            return {} if node else {"enum": []}
        if not isinstance(node, dict):
            raise FormatError(f"a JSON schema is an object, not {shown(node)}{place}")
        types = _types(node, place)
        if node.get("nullable") is True and not self._strict:
            node = {key: value for key, value in node.items() if key != "nullable"}
            if not types and any(key in node for key in keywords.APPLICATORS):
                return {"anyOf": [self._read(node, place, combined), {"type": "null"}]}
            types = [*types, "null"] if types and "null" not in types else types
        return self._read_keywords(self._meaningful(node, types, place), types, place, combined)

    def _read_keywords(self, node: Schema, types: list[str], place: Place, combined: bool) -> Schema:
        if not types and not combined and not any(key in node for key in (*keywords.APPLICATORS, *keywords.VALUES)):
            spoken_of = [name for name, keys in keywords.OF_TYPE.items() if any(key in node for key in keys)]
            types = spoken_of if len(spoken_of) == 1 else types
        combined = combined or _combines(node)
        found: Schema = {"type": types[0] if len(types) == 1 else types} if types else {}
        for key, value in node.items():
            match key:
                case "$ref":
                    found[key] = self._reference(value, place, combined)
                case "allOf" | "anyOf" | "oneOf":
                    both = combined or (key == "allOf" and len(_array(node, key, place)) > 1)
                    parts = enumerate(_array(node, key, place))
                    found[key] = [self._read(part, place / key / at, both) for at, part in parts]
                case "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf":
                    found[key] = _number(node, key, types, place)
                case "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties":
                    found[key] = _count(node, key, place)
                case "pattern":
                    found[key] = self._pattern(value, place)
                case "format":
                    found[key] = _format(value, place)
        _check_order(found, place)
        found |= _enumerated(node, found, place)
        self._array_parts(node, found, place, combined)
        self._object_parts(node, found, place, combined)
        return found

    def _meaningful(self, node: Schema, types: list[str], place: Place) -> Schema:
        """The keywords that have an effect, each of them known and enforceable."""
        spoken_of = {"number" if name == "integer" else name for name in types}
        idle = {key for name, keys in keywords.OF_TYPE.items() if types and name not in spoken_of for key in keys}
        most = node.get("maxItems")
        if node.get("uniqueItems") is True and isinstance(most, int) and most <= 1:
            idle.add("uniqueItems")
        if not self._strict and node.get("format") not in (*keywords.FORMATS, *keywords.OTHER_FORMATS):
            idle.add("format")
        found: Schema = {}
        for key, value in node.items():
            if key in idle or key in keywords.ANNOTATIONS or key.startswith("x-"):
                continue
            if any(value == nothing and type(value) is type(nothing) for nothing in keywords.NEUTRAL.get(key, ())):
                continue
            if key in ("$id", "id") and (isinstance(value, str) or not self._strict):
                if str(place) and (self._strict or self._has_reference(node)):
                    raise FormatError(
                        f"the JSON schema keyword '{key}'{place} is supported in the outermost schema only"
                    )
                continue
            closes = (
                key == "unevaluatedProperties" and value is False and not any(k in node for k in keywords.APPLICATORS)
            )
            if key in keywords.REFUSED and not closes:
                raise FormatError(f"the JSON schema keyword '{key}'{place} cannot be enforced: {keywords.REFUSED[key]}")
            if key not in _KNOWN:
                if not self._strict:
                    continue
                raise FormatError(f"the JSON schema keyword '{cut(key, 60)}'{place} is not known here: leave it out")
            found[key] = value
        return found

    def _has_reference(self, node: Schema) -> bool:
        """True if a schema, or a part of it, refers to another, whose place may depend on an `$id` around it."""
        return "$ref" in node or any(map(self._holds_reference, node.values()))

    def _holds_reference(self, part: Any) -> bool:
        if not isinstance(part, dict | list):
            return False
        if id(part) not in self._referring:
            inner = part if isinstance(part, list) else part.values()
            own = isinstance(part, dict) and "$ref" in part
            self._referring[id(part)] = own or any(map(self._holds_reference, inner))
        return self._referring[id(part)]

    def _pattern(self, source: Any, place: Place) -> str:
        if not isinstance(source, str):
            raise FormatError(f"'pattern' must be a string, not {shown(source)}{place}")
        try:
            found = patterns.search(source)
        except FormatError as error:
            raise FormatError(f"'pattern' {shown(source)}{place}: {error}") from None
        self._pattern_chars += len(found)
        if self._pattern_chars > _MAX_PATTERN_CHARS:
            raise FormatError(
                f"the schema's patterns are too large: over {_MAX_PATTERN_CHARS} characters when spelled out"
            )
        return found

    def _reference(self, pointer: Any, place: Place, combined: bool) -> str:
        if not isinstance(pointer, str):
            raise FormatError(f"'$ref' must be a string, not {shown(pointer)}{place}")
        pointer = unquote(pointer)
        if pointer != "#" and not pointer.startswith("#/"):
            raise FormatError(
                f"'$ref': {shown(pointer)}{place} does not point into this schema ('#/...'), and none is ever fetched"
            )
        self._target(pointer, place)
        key = (pointer, combined)
        if key not in self._names:
            self._names[key] = str(len(self._names))
            self._waiting.append(key)
        return PREFIX + self._names[key]

    def _target(self, pointer: str, place: Place) -> Any:
        node = self._root
        for raw in pointer.split("/")[1:]:
            step = raw.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and step in node:
                node = node[step]
            elif isinstance(node, list) and _INDEX.fullmatch(step) and int(step) < len(node):
                node = node[int(step)]
            else:
                raise FormatError(f"'$ref': {shown(pointer)}{place} points to nothing")
        return node

    def _array_parts(self, node: Schema, found: Schema, place: Place, combined: bool) -> None:
        first, rest = node.get("prefixItems"), node.get("items")
        if isinstance(rest, list):  # up to draft 2019-09
            first, rest = rest, node.get("additionalItems")
        if first is not None:
            if not isinstance(first, list):
                raise FormatError(f"'prefixItems' must be an array of schemas, not {shown(first)}{place}")
            found["prefixItems"] = [
                self._read(part, place / "prefixItems" / at, combined) for at, part in enumerate(first)
            ]
        if rest is not None:
            found["items"] = self._read(rest, place / "items", combined)

    def _object_parts(self, node: Schema, found: Schema, place: Place, combined: bool) -> None:
        for key in ("properties", "patternProperties"):
            parts = node.get(key, {})
            if not isinstance(parts, dict):
                raise FormatError(f"'{key}' must be an object, not {shown(parts)}{place}")
            if parts:
                found[key] = {
                    name if key == "properties" else self._pattern(name, place / key / name): self._read(
                        part, place / key / name, combined
                    )
                    for name, part in parts.items()
                }
        required = _array(node, "required", place) if "required" in node else []
        if not all(isinstance(name, str) for name in required):
            raise FormatError(f"'required' must be an array of strings, not {shown(required)}{place}")
        if required:
            found["required"] = list(dict.fromkeys(required))
        others = node.get("additionalProperties", node.get("unevaluatedProperties"))
        if others is not None:
            found["additionalProperties"] = others and self._read(others, place / "additionalProperties", combined)
        elif not combined and ("properties" in node or "patternProperties" in node) and _sufficient(found):
            found["additionalProperties"] = False
        _check_counts(found, place)


def _combines(node: Schema) -> bool:
    """True if properties may be declared in several parts of the schema."""
    applicators = sum(key in node for key in keywords.APPLICATORS)
    rest = any(key not in ("type", *keywords.APPLICATORS) for key in node)
    return applicators > 1 or (applicators == 1 and rest)


def _sufficient(node: Schema) -> bool:
    """True if the declared properties suffice for a valid object."""
    declared = node.get("properties", {})
    if not all(name in declared for name in node.get("required", ())):
        return False
    return "patternProperties" in node or bool(node.get("minProperties", 0) <= len(declared))


def _check_counts(node: Schema, place: Place) -> None:
    least = node.get("minProperties", 0)
    required = len(node.get("required", ()))
    if least <= required:
        node.pop("minProperties", None)
    elif least > required + 1 and (node.get("additionalProperties") is not False or "patternProperties" in node):
        raise FormatError(
            f"'minProperties': {least}{place} cannot be enforced where names are free or go by a pattern, as they may "
            "come twice: list the properties and set 'additionalProperties': false"
        )


def _types(node: Schema, place: Place) -> list[str]:
    """The types that are allowed; none if any is."""
    value = node.get("type")
    if "type" not in node:
        return []
    types: list[Any] = value if isinstance(value, list) else [value]
    if not types or not all(isinstance(name, str) and name in keywords.TYPES for name in types):
        raise FormatError(f"'type' must be one or several of {', '.join(keywords.TYPES)}, not {shown(value)}{place}")
    types = list(dict.fromkeys(types))
    return [name for name in types if name != "integer"] if "number" in types else types


def _number(node: Schema, key: str, types: list[str], place: Place) -> float:
    """A limit of numbers; a whole one where only integers are allowed."""
    value = node[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FormatError(f"'{key}' must be a number, not {shown(value)}{place}")
    if abs(value) > _MAX_NUMBER:  # also what is too large for a float
        raise FormatError(f"'{key}'{place} beyond 2^53 cannot be enforced to the digit")
    if key == "multipleOf" and value <= 0:
        raise FormatError(f"'multipleOf' must be above 0, not {shown(value)}{place}")
    if "integer" in types and key != "multipleOf":
        value = math.ceil(value) if key in ("minimum", "exclusiveMaximum") else math.floor(value)
    return int(value) if float(value).is_integer() else value


def _count(node: Schema, key: str, place: Place) -> int:
    value = node[key]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_NUMBER:
        raise FormatError(f"'{key}' must be a non-negative integer, not {shown(node[key])}{place}")
    if key.endswith("Length") and value > _MAX_LENGTH:
        raise FormatError(f"'{key}'{place} above {_MAX_LENGTH} is not supported")
    return value


def _check_order(found: Schema, place: Place) -> None:
    for kind in ("Length", "Items", "Properties"):
        if found.get(f"min{kind}", 0) > found.get(f"max{kind}", math.inf):
            raise FormatError(f"'min{kind}' is above 'max{kind}'{place}")
    low = max(found.get("minimum", -math.inf), found.get("exclusiveMinimum", -math.inf))
    if low > min(found.get("maximum", math.inf), found.get("exclusiveMaximum", math.inf)):
        raise FormatError(f"no number lies between the bounds{place}")


def _format(value: Any, place: Place) -> str:
    if value not in keywords.FORMATS:
        raise FormatError(
            f"the string format {shown(value)}{place} cannot be enforced: supported are {', '.join(keywords.FORMATS)}"
        )
    return str(value)


def _array(node: Schema, key: str, place: Place) -> list[Any]:
    """A keyword's value, an array; only `required` may be empty."""
    value = node[key]
    if not isinstance(value, list) or (not value and key != "required"):
        raise FormatError(f"'{key}' must be an array with something in it, not {shown(value)}{place}")
    return value


def _enumerated(node: Schema, found: Schema, place: Place) -> Schema:
    """`enum`, for `const` as well, less the values that `type` rules out."""
    if "enum" not in node and "const" not in node:
        return {}
    values = _array(node, "enum", place) if "enum" in node else [node["const"]]
    if "const" in node:
        constant = comparable(node["const"])
        values = [value for value in values if comparable(value) == constant]
    if any(abs(number) > _MAX_NUMBER for number in _numbers_in(values)):
        raise FormatError(f"numbers over 2^53 in 'enum' or 'const'{place} cannot be enforced to the digit")
    types = found.pop("type", None)
    if types is not None:
        values = [value for value in values if type_of(value) & set(types if isinstance(types, list) else [types])]
    if not values:
        raise FormatError(f"no value of 'enum' or 'const'{place} fits the rest of the schema: nothing would match")
    return {"enum": values}


def _numbers_in(values: Any) -> Iterator[float]:
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, dict | list):
            yield from _numbers_in(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield value
