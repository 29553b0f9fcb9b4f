"""What a JSON schema says of a value that is written as text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from openai_bls.output.tool_parsers.kinds import Kind, as_json, property_kind


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
