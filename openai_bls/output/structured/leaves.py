"""Keywords of a JSON schema that speak of single values: types, enumerations, numbers, strings; and their checks."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from typing import Any

from openai_bls.output.structured import keywords, patterns
from openai_bls.output.structured.errors import FormatError, shown

Schema = dict[str, Any]

# The largest integer up to which JSON readers and both libraries are exact.
_MAX_NUMBER = 2**53
_MAX_LENGTH = 100_000


class Place:
    """Where a schema stands, for messages: `properties.tags.items`."""

    def __init__(self, *steps: str) -> None:
        self._steps = steps

    def __truediv__(self, step: object) -> Place:
        return Place(*self._steps, str(step))

    def __str__(self) -> str:
        steps = [step if len(step) <= 30 else step[:29] + "…" for step in self._steps]
        if len(steps) > 8:
            steps = [*steps[:3], "…", *steps[-4:]]
        return f" (at '{'.'.join(steps)}')" if steps else ""


def types_of(node: Schema, place: Place) -> list[str]:
    """The types that are allowed; none if any is."""
    value = node.get("type")
    if "type" not in node:
        return []
    types: list[Any] = value if isinstance(value, list) else [value]
    if not types or not all(isinstance(name, str) and name in keywords.TYPES for name in types):
        raise FormatError(f"'type' must be one or several of {', '.join(keywords.TYPES)}, not {shown(value)}{place}")
    types = list(dict.fromkeys(types))
    return [name for name in types if name != "integer"] if "number" in types else types


def enumerated(node: Schema, found: Schema, place: Place) -> Schema:
    """`enum`, for `const` as well, less the values that other keywords of the schema rule out at a glance."""
    values: list[Any] | None = None
    if "enum" in node:
        values = array(node, "enum", place)
    if "const" in node:
        same = [value for value in values or [node["const"]] if equal(value, node["const"])]
        values = same
    if values is None:
        return {}
    for number in _numbers_in(values):
        if abs(number) > _MAX_NUMBER:
            raise FormatError(f"numbers over 2^53 in 'enum' or 'const'{place} cannot be enforced to the digit")
    types = found.pop("type", None)
    if types is not None:
        allowed = types if isinstance(types, list) else [types]
        values = [value for value in values if type_of(value) & set(allowed)]
    if not values:
        raise FormatError(f"no value of 'enum' or 'const'{place} fits the rest of the schema: nothing would match")
    return {"enum": values}


def equal(one: Any, other: Any) -> bool:
    """JSON's equality: 1 is 1.0 but not true."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(value, other[key]) for key, value in one.items())
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)


def comparable(value: Any) -> Hashable:
    """Something to hash and compare in a value's stead, by the rules of `equal`."""
    if isinstance(value, list):
        return ("array", tuple(map(comparable, value)))
    if isinstance(value, dict):
        return frozenset((key, comparable(part)) for key, part in value.items())
    # To Python true is 1.
    return ("boolean", value) if isinstance(value, bool) else value


def _numbers_in(values: Any) -> Iterator[float]:
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, dict | list):
            yield from _numbers_in(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield value


def type_of(value: Any) -> set[str]:  # noqa: PLR0911
    """The types of a JSON value."""
    match value:
        case bool():
            return {"boolean"}
        case None:
            return {"null"}
        case int():
            return {"integer", "number"}
        case float():
            return {"integer", "number"} if value.is_integer() else {"number"}
        case str():
            return {"string"}
        case list():
            return {"array"}
    return {"object"}


def bounds(node: Schema, types: list[str], place: Place) -> Schema:
    """The limits of a schema's numbers, checked; whole ones for integers."""
    found: Schema = {}
    whole = "integer" in types
    for key in keywords.OF_TYPE["number"]:
        if key not in node:
            continue
        value = node[key]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise FormatError(f"'{key}' must be a number, not {shown(value)}{place}")
        if abs(value) > _MAX_NUMBER:  # also what is too large for a float
            raise FormatError(f"'{key}'{place} beyond 2^53 cannot be enforced to the digit")
        if key == "multipleOf" and value <= 0:
            raise FormatError(f"'multipleOf' must be above 0, not {shown(value)}{place}")
        if whole and key != "multipleOf":
            # The same bound, for integers.
            up = key in ("minimum", "exclusiveMaximum")
            value = math.ceil(value) if up else math.floor(value)
        found[key] = int(value) if float(value).is_integer() else value
    low = max(found.get("minimum", -math.inf), found.get("exclusiveMinimum", -math.inf))
    high = min(found.get("maximum", math.inf), found.get("exclusiveMaximum", math.inf))
    if low > high:
        raise FormatError(f"no number lies between the bounds{place}")
    return found


def string_limits(node: Schema, place: Place) -> Schema:
    """The limits of a schema's strings, checked."""
    found: Schema = {}
    for key in ("minLength", "maxLength"):
        if key in node:
            found[key] = count(node, key, place)
            if found[key] > _MAX_LENGTH:
                raise FormatError(f"'{key}'{place} above {_MAX_LENGTH} is not supported")
    if found.get("minLength", 0) > found.get("maxLength", math.inf):
        raise FormatError(f"'minLength' is above 'maxLength'{place}")
    if "pattern" in node:
        found["pattern"] = pattern(node["pattern"], place)
    if "format" in node:
        if node["format"] not in keywords.FORMATS:
            raise FormatError(
                f"the string format {shown(node['format'])}{place} cannot be enforced: "
                f"supported are {', '.join(keywords.FORMATS)}"
            )
        found["format"] = node["format"]
    return found


def pattern(source: Any, place: Place) -> str:
    """A regular expression of a schema, plain and anchored."""
    if not isinstance(source, str):
        raise FormatError(f"'pattern' must be a string, not {shown(source)}{place}")
    try:
        return f"^(?:{patterns.search(source)})$"
    except FormatError as error:
        raise FormatError(f"'pattern' {shown(source)}{place}: {error}") from None


def count(node: Schema, key: str, place: Place) -> int:
    """A keyword's value, a length or another number of things."""
    value = node[key]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_NUMBER:
        raise FormatError(f"'{key}' must be a non-negative integer, not {shown(node[key])}{place}")
    return value


def array(node: Schema, key: str, place: Place) -> list[Any]:
    """A keyword's value, an array; only `required` may be empty."""
    value = node[key]
    if not isinstance(value, list) or (not value and key != "required"):
        raise FormatError(f"'{key}' must be an array with something in it, not {shown(value)}{place}")
    return value


def mapping(node: Schema, key: str, place: Place) -> dict[str, Any]:
    """A keyword's value, an object; an empty one if it is missing."""
    value = node.get(key, {})
    if not isinstance(value, dict):
        raise FormatError(f"'{key}' must be an object, not {shown(value)}{place}")
    return value
