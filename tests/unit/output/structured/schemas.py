"""Random JSON schemas."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Schema = dict[str, Any]

NAMES = st.sampled_from(["a", "b", "name", "x y", 'q"', "é", "\\", "k\n", "$ref", "type", "日本", ""])
VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [1, -2, 0, "a", '"', "", None, True, 1.5, 0.1, 1e-7, "日\n", [1], {"a": []}, [[None], "z"]]
)
PATTERNS = st.sampled_from([r"^\d{3}-\w+$", "foo|bar", "^[^a]", r"\s$", "^(ab|c)+$", r"^\S+@\S+$", ""])
FORMATS = st.sampled_from(["date", "uuid", "ipv4", "email", "date-time", "duration", "time", "hostname", "ipv6", "uri"])


@st.composite
def strings(draw: st.DrawFn) -> Schema:
    schema: Schema = {"type": "string"}
    match draw(st.integers(0, 4)):
        case 0:
            schema |= {"minLength": draw(st.integers(0, 4)), "maxLength": draw(st.integers(4, 9))}
        case 1:
            schema["pattern"] = draw(PATTERNS)
        case 2:
            schema["format"] = draw(FORMATS)
        case 3:
            schema |= {"pattern": "^[a-c]*$", "minLength": draw(st.integers(0, 5))}
    return schema


@st.composite
def integers(draw: st.DrawFn) -> Schema:
    schema: Schema = {"type": "integer"}
    if draw(st.booleans()):
        schema[draw(st.sampled_from(["minimum", "exclusiveMinimum"]))] = draw(st.integers(-300, 10))
    if draw(st.booleans()):
        schema[draw(st.sampled_from(["maximum", "exclusiveMaximum"]))] = draw(st.integers(30, 1500) | st.just(99.5))
    if draw(st.integers(0, 3)) == 0:
        schema["multipleOf"] = draw(st.integers(1, 9))
    return schema


@st.composite
def numbers(draw: st.DrawFn) -> Schema:
    schema: Schema = {"type": "number"}
    if draw(st.booleans()):
        low = draw(st.integers(-3000, 1000)) / draw(st.sampled_from([1, 10, 1000]))
        schema[draw(st.sampled_from(["minimum", "exclusiveMinimum"]))] = low
    if draw(st.booleans()):
        high = 1001 + draw(st.integers(1, 2000)) / draw(st.sampled_from([1, 10, 1000]))
        schema[draw(st.sampled_from(["maximum", "exclusiveMaximum"]))] = high
    if draw(st.integers(0, 3)) == 0:
        schema["multipleOf"] = draw(st.sampled_from([0.5, 0.25, 3]))
    return schema


ENUMS = st.builds(lambda values: {"enum": values}, st.lists(VALUES, min_size=1, max_size=4))
CONSTS = st.builds(lambda value: {"const": value}, VALUES)
TYPES = st.lists(st.sampled_from(["string", "integer", "null", "boolean", "array", "object"]), min_size=1, max_size=3)
PLAIN = st.sampled_from([{"type": "boolean"}, {"type": "null"}, {}, {"type": "object"}, {"type": "array"}])
LEAVES = st.one_of(strings(), integers(), numbers(), ENUMS, CONSTS, PLAIN, st.builds(lambda t: {"type": t}, TYPES))


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    schema: Schema = {"type": "array", "items": draw(inner)}
    if draw(st.booleans()):
        schema |= {"minItems": draw(st.integers(0, 2)), "maxItems": draw(st.integers(2, 4))}
    if draw(st.integers(0, 4)) == 0:
        schema["prefixItems"] = [draw(inner)]
    if draw(st.integers(0, 9)) == 0:
        schema["uniqueItems"] = True
    return schema


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    names = draw(st.lists(NAMES, unique=True, max_size=4))
    schema: Schema = {
        "type": "object",
        "properties": {name: draw(inner) for name in names},
        "required": [name for name in names if draw(st.booleans())],
    }
    match draw(st.integers(0, 9)):
        case 0 | 1 | 2:
            schema["additionalProperties"] = False
        case 3:
            schema["additionalProperties"] = draw(inner)
        case 4:
            schema["additionalProperties"] = True
        case 5:
            schema["patternProperties"] = {"^zz": draw(inner)}
        case 6:
            schema["minProperties"] = 1
        case 7:
            schema["required"].append("another")
    return schema


@st.composite
def combined(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    parts = draw(st.lists(inner, min_size=1, max_size=3))
    match draw(st.integers(0, 4)):
        case 0:
            return {"oneOf": parts}
        case 1:
            return {"allOf": parts}
        case 2:
            return {"anyOf": parts, **draw(objects(inner))}
        case 3:
            return {"$ref": "#/$defs/node", **draw(inner)}
    return {"anyOf": parts}


def _deeper(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    references = st.just({"$ref": "#/$defs/node"}) | st.just({"$ref": "#/$defs/leaf"})
    return st.one_of(arrays(inner), objects(inner), objects(inner), combined(inner), inner, references)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    """A schema with definitions, one of which refers to itself."""
    node: Schema = {
        "type": "object",
        "properties": {"v": draw(LEAVES), "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
        "required": ["v", "next"] if draw(st.booleans()) else [],
    }
    root = draw(st.recursive(LEAVES, _deeper, max_leaves=8))
    return {**root, "$defs": {"node": node, "leaf": draw(LEAVES)}}
