"""What a JSON schema says of a value that is written as text."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.output.tool_parsers.kinds import Kind, ToolSchema, as_json, schemas_of


def property_kind(root: Any, key: str) -> Kind:
    """The kind of a member, by a first look at its schema."""
    return ToolSchema(root).property_kind(key)


@pytest.mark.parametrize(
    ("schema", "types", "restricted"),
    [
        ({"type": "string"}, {"string"}, False),
        ({"type": ["integer", "null"]}, {"integer", "null"}, False),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"string", "null"}, False),
        ({"oneOf": [{"type": "string", "format": "date"}, {"type": "null"}]}, {"string", "null"}, True),
        ({"enum": ["a", 1, None]}, {"string", "integer", "number", "null"}, True),
        ({"const": "a"}, {"string"}, True),
        ({"$ref": "#/$defs/a~1b"}, {"boolean"}, False),
        ({"allOf": [{"type": ["string", "null"]}, {"type": "string"}]}, {"string"}, False),
        ({}, Kind().types, False),
        (True, Kind().types, False),
        ({"$ref": "elsewhere"}, Kind().types, False),
        ({"$ref": "#/$defs/loop"}, Kind().types, False),
        ({"type": 7, "anyOf": 7, "allOf": 7, "enum": 7}, Kind().types, True),
    ],
)
def test_kinds(schema: Any, types: set[str], restricted: bool) -> None:
    root = {"properties": {"x": schema}, "$defs": {"a/b": {"type": "boolean"}, "loop": {"$ref": "#/$defs/loop"}}}
    assert property_kind(root, "x") == Kind(frozenset(types), restricted)
    for silent in ({}, {"properties": 7}, {"properties": {"y": schema}}):
        assert property_kind(silent, "x") == Kind()


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("12", {"integer"}, "12"),
        ("12", {"string", "null"}, '"12"'),
        (" 1.0 ", {"integer"}, "1.0"),
        ("1.5", {"integer"}, '"1.5"'),
        ("1.5", {"number"}, "1.5"),
        ("True", {"boolean"}, "true"),
        ("True", {"string"}, '"True"'),
        ("None", {"string", "null"}, "null"),
        ("NaN", {"number"}, '"NaN"'),
        ('"a"', {"object"}, '"a"'),
        ('"a"', {"string", "null"}, '"\\"a\\""'),
        ("[" * 100_000, {"array"}, json.dumps("[" * 100_000)),
        (" {} \n", {"object", "string"}, "{}"),
        (" x \n", {"object", "string"}, '" x \\n"'),
    ],
)
def test_values(text: str, types: set[str], value: str) -> None:
    assert as_json(text, Kind(frozenset(types))) == value


def test_references_that_fan_out_and_go_round_are_followed_once() -> None:
    fan = {"properties": {"x": {"anyOf": [{"$ref": "#/properties/x"}] * 8}}}
    assert property_kind(fan, "x") == Kind()
    names = [f"d{at}" for at in range(12)]
    both = {name: {"anyOf": [{"$ref": f"#/$defs/{other}"} for other in names]} for name in names}
    assert property_kind({"properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": both}, "x") == Kind()


def test_a_schema_too_large_to_tell_says_nothing() -> None:
    text = {"type": "string"}
    assert property_kind({"properties": {"x": {"anyOf": [text] * 1_000}}}, "x") == Kind(frozenset({"string"}))
    assert property_kind({"properties": {"x": {"anyOf": [text] * 5_000}}}, "x") == Kind()
    root = {"properties": {"x": {"allOf": [{"$ref": "#/$defs/a"}] * 2}}, "$defs": {"a": {"type": "string"}}}
    assert property_kind(root, "x") == Kind(frozenset({"string"}))


NAMES = [f"d{at}" for at in range(4)]
VALUES = st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.5, 2.0]) | st.text("a1", max_size=2)
TYPES = st.sampled_from(["string", "number", "integer", "boolean", "null", "object", "array", "other"])
SCHEMAS = st.recursive(
    st.just({})
    | st.builds(lambda value: {"type": value}, TYPES | st.lists(TYPES, max_size=3))
    | st.builds(lambda value: {"enum": value}, st.lists(VALUES, max_size=3))
    | st.builds(lambda value: {"const": value}, VALUES)
    | st.builds(lambda name: {"$ref": f"#/$defs/{name}"}, st.sampled_from(NAMES)),
    lambda inner: st.builds(
        lambda key, parts, more: {key: parts, **more},
        st.sampled_from(["anyOf", "oneOf", "allOf"]),
        st.lists(inner, max_size=3),
        st.sampled_from([{}, {"type": ["string", "null"]}, {"pattern": "a"}]),
    ),
    max_leaves=6,
)


@given(st.lists(SCHEMAS, min_size=4, max_size=4), st.permutations(NAMES), VALUES)
def test_a_kind_does_not_depend_on_what_was_asked_before(schemas: list[Any], order: list[str], value: Any) -> None:
    """Nor on the values but for their types, and it allows what was allowed by each of them alone."""
    root = {"properties": dict(zip(NAMES, schemas, strict=True)), "$defs": dict(zip(NAMES, schemas, strict=True))}
    shared = schemas_of([{"function": {"name": "f", "parameters": root}}])["f"]
    for name in order * 2:
        assert shared.property_kind(name) == property_kind(root, name)
    alone = {"properties": {"x": {"anyOf": [{"const": value}, {"enum": [value]}]}}}
    assert property_kind(alone, "x").types == property_kind({"properties": {"x": {"const": value}}}, "x").types


MOST_S = 0.5
ENUM = [f"v{at}" for at in range(150_000)]
SPELLINGS = ["".join(parts) for parts in itertools.product(("~", "~0"), repeat=11)]
"""Ways to write one step of a reference."""
TEXT = {"type": "string"}


@pytest.mark.parametrize(
    ("target", "types"),
    [
        ({"enum": ENUM}, {"string"}),
        ({"enum": [at + 0.5 for at in range(150_000)]}, {"number"}),
        ({"type": ["string"] * 150_000}, {"string"}),
        ({"type": "string"} | dict.fromkeys(ENUM, 1), {"string"}),
        ({"anyOf": [TEXT] * 150_000}, Kind().types),
        ({"oneOf": [{"anyOf": [TEXT] * 400}] * 400}, Kind().types),
        ({"allOf": [TEXT] * 150_000}, {"string"}),
    ],
)
def test_a_large_schema_is_looked_at_once_for_all_that_lead_to_it(target: Any, types: set[str]) -> None:
    """The largest that a body may have; with as many references and calls a look takes no longer than by itself."""
    root = {
        "properties": {
            "one": {"$ref": "#/$defs/~"},
            "many": {"anyOf": [{"$ref": f"#/$defs/{spelling}"} for spelling in SPELLINGS[:1_900]]},
            **{f"p{at}": {"$ref": "#/$defs/" + SPELLINGS[at]} for at in range(2_000)},
        },
        "$defs": {"~": target, "~" * 11: target},
    }
    begun = time.thread_time()
    schema = schemas_of([{"function": {"name": "f", "parameters": root}}])["f"]
    for _ in range(128):
        assert schema.property_kind("one").types == types
    for key in root["properties"]:
        schema.property_kind(key)
        schema.member(schema.argument(key), "x")
        schema.items(schema.argument(key))
    assert time.thread_time() - begun < MOST_S


def test_a_long_reference_leads_nowhere_soon() -> None:
    begun = time.thread_time()
    root = {"properties": {"x": {"anyOf": [{"$ref": "#/" + "a/" * 5_000_000 + str(at)} for at in range(3)]}}}
    made = time.thread_time()
    assert property_kind(root, "x") == Kind()
    assert time.thread_time() - made < max(MOST_S, made - begun)


def test_what_many_unions_leave_is_of_any_kind() -> None:
    """All schemas of a request have so much work together."""
    union = {"anyOf": [{"type": "string", "x": at} for at in range(1_000)]}
    tools = [
        {"function": {"name": name, "parameters": {"properties": {f"p{at}": dict(union) for at in range(20)}}}}
        for name in "fg"
    ]
    begun = time.thread_time()
    schemas = schemas_of(tools)
    kinds = [schemas[name].property_kind(f"p{at}") for name in "fg" for at in range(20)]
    assert time.thread_time() - begun < MOST_S
    assert kinds[:30] == [Kind(frozenset({"string"}))] * 30
    assert kinds[-1] == Kind()
