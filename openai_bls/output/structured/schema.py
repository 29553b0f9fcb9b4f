"""Reader of JSON schemas: normalised to the form that llguidance and xgrammar read alike, every keyword checked.

References point into `$defs` only, patterns are plain, `items` is one schema, keywords that say nothing are gone.
Three choices where a schema leaves a choice; all narrow what is generated, so that it validates all the same:

- an object that declares properties and says nothing of others gets no others, as in OpenAI's strict mode. Not
  where schemas are combined (`allOf`, keywords beside `$ref` or `anyOf`), as each may declare some of them;
- a schema without `type` whose keywords speak of one type is of that type;
- properties come in the order in which they are declared.

What is wrong in itself (types of values, bounds that cross) is llguidance's to refuse, unless it lets it pass.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterator
from typing import Any
from urllib.parse import unquote

from openai_bls.output.structured import bounds, keywords, patterns
from openai_bls.output.structured.bounds import Gates
from openai_bls.output.structured.errors import FormatError, cut, shown

Schema = dict[str, Any]

PREFIX = "#/$defs/"
# Subschemas, counted once for each place and each way to combine them.
_MAX_NODES = 20_000
# Of all patterns together.
_MAX_PATTERN_CHARS = 512 * 1024
# Schemas within one another, each reference followed once.
_MAX_DEPTH = 500
# The largest integer up to which JSON readers and both libraries are exact.
_MAX_NUMBER = 2**53
_MAX_LENGTH = 100_000
# Alternatives of `oneOf` that are compared with one another, in all of a schema.
_MAX_PAIRS = 20_000
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


def checked(schema: Any) -> Schema:
    """A schema whose nesting is bounded, with all its keywords honoured or refused.

    Raises:
        FormatError: it is no JSON schema, has what cannot be enforced, or no instance; the message says where.
    """
    found = _Reader(schema).read_all()
    _check_depth(found)
    _check_ends(found)
    bounds.check_joined(found)
    _Alternatives(found).settle()
    return found


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


class _Reader:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._nodes = 0
        self._pattern_chars = 0
        # By pointer and whether other schemas are combined with it: the name in `$defs`.
        self._names: dict[tuple[str, bool], str] = {}
        self._waiting: list[tuple[str, bool]] = []

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
        node = _meaningful(node, types, place)
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


def _meaningful(node: Schema, types: list[str], place: Place) -> Schema:
    """The keywords that have an effect, each of them known and enforceable."""
    spoken_of = {"number" if name == "integer" else name for name in types}
    idle = {key for name, keys in keywords.OF_TYPE.items() if types and name not in spoken_of for key in keys}
    most = node.get("maxItems")
    if node.get("uniqueItems") is True and isinstance(most, int) and most <= 1:
        idle.add("uniqueItems")
    found: Schema = {}
    for key, value in node.items():
        if key in idle or key in keywords.ANNOTATIONS or key.startswith("x-"):
            continue
        if any(value == nothing and type(value) is type(nothing) for nothing in keywords.NEUTRAL.get(key, ())):
            continue
        if key in ("$id", "id") and isinstance(value, str):
            if str(place):
                raise FormatError(f"the JSON schema keyword '{key}'{place} is supported in the outermost schema only")
            continue
        closes = key == "unevaluatedProperties" and value is False and not any(k in node for k in keywords.APPLICATORS)
        if key in keywords.REFUSED and not closes:
            raise FormatError(f"the JSON schema keyword '{key}'{place} cannot be enforced: {keywords.REFUSED[key]}")
        if key not in _KNOWN:
            raise FormatError(f"the JSON schema keyword '{cut(key, 60)}'{place} is not known here: leave it out")
        found[key] = value
    return found


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
        values = [value for value in values if comparable(value) == comparable(node["const"])]
    if any(abs(number) > _MAX_NUMBER for number in _numbers_in(values)):
        raise FormatError(f"numbers over 2^53 in 'enum' or 'const'{place} cannot be enforced to the digit")
    types = found.pop("type", None)
    if types is not None:
        values = [value for value in values if type_of(value) & set(types if isinstance(types, list) else [types])]
    if not values:
        raise FormatError(f"no value of 'enum' or 'const'{place} fits the rest of the schema: nothing would match")
    return {"enum": values}


def comparable(value: Any) -> Hashable:
    """Something to hash and compare in a value's stead, by JSON's equality: 1 is 1.0 but not true."""
    if isinstance(value, list):
        return ("array", tuple(map(comparable, value)))
    if isinstance(value, dict):
        return frozenset((key, comparable(part)) for key, part in value.items())
    return ("boolean", value) if isinstance(value, bool) else value


def _numbers_in(values: Any) -> Iterator[float]:
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, dict | list):
            yield from _numbers_in(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield value


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


def _check_depth(schema: Schema) -> None:
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


def _check_ends(schema: Schema) -> None:
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


class _Alternatives:
    """`oneOf` as `anyOf` wherever no instance is allowed by two of the alternatives, as far as types, values and tags
    tell."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._pairs = 0
        # By the identity of an enumeration's list.
        self._values: dict[int, frozenset[Any]] = {}

    def settle(self, node: Any = None) -> None:
        node = self._schema if node is None else node
        if isinstance(node, dict) and "oneOf" in node and "anyOf" not in node:
            parts = node["oneOf"]
            self._pairs += len(parts) * (len(parts) - 1) // 2
            if self._pairs <= _MAX_PAIRS and all(
                self._exclude(one, other) for at, one in enumerate(parts) for other in parts[:at]
            ):
                node["anyOf"] = node.pop("oneOf")
        for part in subschemas(node):
            self.settle(part)

    def _exclude(self, one: Any, other: Any) -> bool:
        one, other = self._resolved(one), self._resolved(other)
        types = _types_of(one) & _types_of(other)
        if not types or ("enum" in one and "enum" in other and self._disjoint(one["enum"], other["enum"])):
            return True
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
            node = self._schema["$defs"][node["$ref"].removeprefix(PREFIX)]
        return node if isinstance(node, dict) else {}


def _types_of(node: Schema) -> set[str]:
    """The types that a schema allows at most; `integer` also where it is `number`."""
    if "enum" in node:
        return set().union(*map(type_of, node["enum"]))
    found = set(_declared(node))
    return found | {"integer"} if "number" in found else found
