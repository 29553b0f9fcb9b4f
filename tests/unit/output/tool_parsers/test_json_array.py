"""Tool calls in a JSON array, however the text is cut."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from openai_bls.output.events import OutputParser
from openai_bls.output.tool_parsers.families.json_calls.hermes import HERMES
from openai_bls.output.tool_parsers.formats import as_json_array, either
from tests.unit.output.parsing import Found, check_every_split

TREE = {
    "type": "object",
    "properties": {"left": {"$ref": "#"}, "kind": {"$ref": "#/$defs/k"}},
    "$defs": {"k": {"const": 1}},
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "f", "parameters": TREE}},
    {"type": "function", "function": {"name": "g"}},
]
FORMAT = as_json_array(HERMES)


def parser() -> OutputParser:
    return FORMAT.parsers(TOOLS)()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[{"name": "f", "parameters": {"left": {}}}]', [("call", "f", '{"left": {}}')]),
        (
            '[\n  {"name": "f", "parameters": {}} ,{"name":"g","parameters":{"a": "]"}}\n]\n',
            [("call", "f", "{}"), ("call", "g", '{"a": "]"}')],
        ),
        ('[{"name": "f", "parameters": {"left', [("call", "f", '{"left')]),
        ('{"answer": "[{}]"}', [("content", '{"answer": "[{}]"}')]),
        ('[{"name": "h", "parameters": {}}]', [("content", '[{"name": "h", "parameters": {}}]')]),
        ("[1, 2]", [("content", "[1, 2]")]),
    ],
)
def test_calls(text: str, expected: Found) -> None:
    check_every_split(parser, text, expected)


@pytest.mark.parametrize("parallel", [True, False])
def test_the_schema(parallel: bool) -> None:
    schema = FORMAT.constraint(TOOLS, at_least_one=True, name=None, parallel=parallel)["json_schema"]
    one = {"name": "f", "parameters": {"left": {"left": {"kind": 1}}, "kind": 1}}
    jsonschema.validate([one], schema)
    for wrong in ([], [{"name": "f", "parameters": {"left": {"kind": 2}}}], [{"name": "g", "parameters": {"a": 1}}]):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
    assert jsonschema.Draft202012Validator(schema).is_valid([one, one]) is parallel


def test_an_answer_or_calls() -> None:
    calls = FORMAT.constraint(TOOLS, at_least_one=True, name="f", parallel=True)
    answer = {"type": "json_schema", "json_schema": TREE}
    both = either(answer, calls)
    assert both is not None
    for value in ({"left": {"kind": 1}}, [{"name": "f", "parameters": {"left": {"kind": 1}}}]):
        jsonschema.validate(value, both["json_schema"])
    for value in ({"left": {"kind": 2}}, [{"name": "f", "parameters": {"left": {"kind": 2}}}]):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(value, both["json_schema"])
    # An array may be either.
    for other in ({"type": "array"}, {}, True):
        assert either({"type": "json_schema", "json_schema": other}, calls) is None
    assert either({"type": "regex", "pattern": json.dumps("a")}, calls) is None
