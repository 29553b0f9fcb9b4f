"""The table in `keywords`, held against llguidance itself: what is honoured, what is refused and in which words."""

from __future__ import annotations

import json
from typing import Any, Literal

import jsonschema
import pytest
from llguidance import LLMatcher
from openai.lib._pydantic import to_strict_json_schema
from pydantic import BaseModel, Field

from openai_bls.core.errors import InvalidRequestError
from openai_bls.output.structured import grammar
from openai_bls.output.structured.schemas import keywords, schema
from tests.unit.output.structured.driving import XGRAMMAR, accepts, json_schema, made

Schema = dict[str, Any]

OBJECT: Schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {}}, "required": ["a"]}
CLOSED = {**OBJECT, "additionalProperties": False}
LIST: Schema = {
    "$defs": {"n": {"type": "object", "properties": {"n": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}}},
    "$ref": "#/$defs/n",
}

BY_BOTH: list[Any] = [
    True,
    {},
    {"type": "string"},
    {"type": ["string", "null"]},
    {"type": "integer", "minimum": -5, "exclusiveMaximum": 7.5},
    {"type": "number"},
    {"type": "object"},
    {"type": "object", "additionalProperties": {"type": "integer"}},
    OBJECT,
    CLOSED,
    {"properties": {"a": {}}},
    {"type": "array", "items": OBJECT, "minItems": 1, "maxItems": 3},
    {"type": "array"},
    {"enum": ["a", 1, None, {"b": [True]}]},
    {"const": "a"},
    {"type": "string", "enum": ["a", "b"], "title": "x"},
    {"anyOf": [{"type": "string"}, CLOSED]},
    LIST,
    {"type": "object", "properties": {"a": {"$ref": "#"}}},
    {"oneOf": [{"type": "string"}, {"type": "integer"}]},
    {"type": "integer", "format": "int32", "minLength": 3},
    {"type": "array", "uniqueItems": False},
    {"type": "array", "minItems": 1.0, "maxItems": 1, "uniqueItems": True},
    {"type": "object", "properties": {"a": {}}, "unevaluatedProperties": False},
    {"$schema": "http://json-schema.org/draft-07/schema#", "$id": "x", "definitions": {"d": {"not": {}}}, "x-y": 1},
]

BY_LLGUIDANCE: list[tuple[Any, str]] = [
    ({"type": "string", "pattern": "^a"}, "pattern"),
    ({"type": "string", "format": "date"}, "format"),
    ({"type": "string", "minLength": 1}, "minLength"),
    ({"type": "string", "maxLength": 5}, "maxLength"),
    ({"type": "integer", "multipleOf": 3}, "multipleOf"),
    ({"type": "number", "minimum": 0.5}, "minimum"),
    ({"type": "number", "exclusiveMaximum": 7}, "exclusiveMaximum"),
    ({"type": "array", "prefixItems": [{"type": "string"}]}, "prefixItems"),
    ({"type": "array", "items": [{"type": "string"}], "additionalItems": False}, "prefixItems"),
    ({"type": "array", "items": {"type": "string", "pattern": "a"}}, "pattern"),
    ({"type": "array", "items": {}, "maxItems": 5000}, "maxItems"),
    ({"type": "object", "patternProperties": {"^a": {}}}, "patternProperties"),
    ({"type": "object", "minProperties": 1}, "minProperties"),
    ({"type": "object", "maxProperties": 3}, "maxProperties"),
    ({**OBJECT, "additionalProperties": True}, "additionalProperties"),
    ({"type": "object", "required": ["z"]}, "required"),
    ({"allOf": [{"type": "object", "properties": {"a": {}}}, {"required": ["a"]}]}, "allOf"),
    ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}], **OBJECT}, "type"),
    ({"$ref": "#/$defs/s", "maxLength": 3, "$defs": {"s": {"type": "string"}}}, "maxLength"),
    ({"enum": [0.1]}, "enum"),
]


@pytest.mark.parametrize("wanted", [*BY_BOTH, *(wanted for wanted, _ in BY_LLGUIDANCE)])
def test_llguidance_honours(wanted: Any) -> None:
    assert made(json_schema(wanted)).kind == "json_schema"


@pytest.mark.parametrize("wanted", BY_BOTH)
def test_xgrammar_honours(wanted: Any) -> None:
    assert grammar(json_schema(wanted), XGRAMMAR, param="p").kind == "json_schema"


@pytest.mark.parametrize(("wanted", "keyword"), BY_LLGUIDANCE)
def test_xgrammar_would_let_pass(wanted: Any, keyword: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"'{keyword}'.* engine"):
        grammar(json_schema(wanted), XGRAMMAR, param="p")


def refusal(wanted: Any, **options: Any) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        made({**json_schema(wanted), **options})
    assert caught.value.param == "response_format"
    assert caught.value.message.startswith("'response_format': ")
    return caught.value.message


@pytest.mark.parametrize("keyword", sorted(keywords.REFUSED))
def test_neither_honours(keyword: str) -> None:
    values: dict[str, Any] = {
        "minContains": 2,
        "maxContains": 2,
        "uniqueItems": True,
        "nullable": True,
        "dependentRequired": {"a": ["b"]},
        "dependencies": {"a": ["b"]},
        "unevaluatedItems": False,
    }
    wanted = {keyword: values.get(keyword, {"a": {"type": "string", "minLength": 2}})}
    message = refusal({"type": "object", "properties": {"deep": {"type": "array", "items": wanted}}}, strict=True)
    assert f"'{keyword}' (at 'properties.deep.items') cannot be enforced: {keywords.REFUSED[keyword]}" in message


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (False, "nothing would match"),
        ({"anyOf": [False, False]}, "nothing would match"),
        ({"$ref": "#"}, "nothing would match"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "nothing would match"),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "nothing would match"),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "nothing would match"),
        ({"type": "string", "enum": [1]}, "no value of 'enum' or 'const'"),
        ({"const": 1, "enum": [2]}, "no value of 'enum' or 'const'"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "no number lies between the bounds"),
        ({"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 5}, "does not contain a multiple"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "'minLength' is above 'maxLength'"),
        ({"type": "string", "pattern": "^aaa$", "maxLength": 2}, "Unsatisfiable"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "'minItems' is above 'maxItems'"),
        ({"type": "object", "minProperties": 3, "maxProperties": 2}, "'minProperties' is above"),
        ({"type": "object", "minProperties": 2}, "names are free"),
        ({"type": "strin"}, 'not "strin"'),
        ({"type": []}, "'type' must be one or several of"),
        ({"type": None}, "not null"),
        ({"properties": {"a": 3}}, "a JSON schema is an object, not 3 (at 'properties.a')"),
        ({"properties": []}, "'properties' must be an object"),
        ({"required": "a"}, "'required' must be an array"),
        ({"required": [1]}, "'required' must be an array of strings"),
        ({"enum": []}, "'enum' must be an array with something in it"),
        ({"anyOf": {}}, "'anyOf' must be an array with something in it"),
        ({"prefixItems": {}}, "'prefixItems' must be an array"),
        ({"type": "string", "minLength": -1}, "'minLength' must be a non-negative integer, not -1"),
        ({"type": "string", "minLength": True}, "not true"),
        ({"type": "string", "maxLength": 10**6}, "'maxLength' above"),
        ({"type": "string", "pattern": "("}, "missing ')'"),
        ({"type": "string", "pattern": 3}, "'pattern' must be a string"),
        ({"patternProperties": {"[": {}}}, "missing ']'"),
        ({"patternProperties": {"^a": {}, "b$": {}}}, "not disjoint"),
        ({"type": "string", "format": "iri"}, 'the string format "iri" cannot be enforced: supported are date-time'),
        ({"type": "integer", "minimum": "3"}, "'minimum' must be a number"),
        ({"type": "integer", "minimum": 2**60}, "beyond 2^53"),
        ({"const": 2**60}, "over 2^53"),
        ({"type": "integer", "multipleOf": 0}, "above 0"),
        ({"exclusiveMinimum": True}, "'exclusiveMinimum' must be a number, not true"),
        ({"$ref": "http://example.com/schema.json"}, "none is ever fetched"),
        ({"$ref": "other.json#/a"}, "none is ever fetched"),
        ({"$ref": "#anchor"}, "none is ever fetched"),
        ({"$ref": "#/nowhere"}, "points to nothing"),
        ({"$ref": "#/anyOf/00000000001", "anyOf": [{}]}, "points to nothing"),
        ({"$ref": "#/anyOf/1", "anyOf": [{}]}, "points to nothing"),
        ({"$ref": 3}, "'$ref' must be a string"),
        ({"properties": {"a": {"$id": "x", "anyOf": [{"$ref": "#"}, {}]}}}, "outermost schema only"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "alternatives may overlap: use 'anyOf'"),
        ({"oneOf": [{"minimum": 3}, {"maximum": 5}]}, "alternatives may overlap"),
    ],
)
def test_refusals(wanted: Any, says: str) -> None:
    assert says in refusal(wanted)


@pytest.mark.parametrize(
    ("unknown", "says"),
    [
        ({"optional": True}, "'optional' (at 'properties.a') is not known here"),
        ({"enumNames": ["A"]}, "'enumNames' (at 'properties.a') is not known here"),
        ({"maxLenght": 3}, "'maxLenght' (at 'properties.a') is not known here"),
        ({"propertyOrdering": ["a"]}, "'propertyOrdering' (at 'properties.a') is not known here"),
        ({"id": "a"}, "outermost schema only"),
        ({"$id": "https://example.com/a"}, "outermost schema only"),
        ({"id": 3}, "'id' (at 'properties.a') is not known here"),
        ({"format": "password"}, 'the string format "password"'),
        ({"nullable": True}, "'nullable' (at 'properties.a') cannot be enforced"),
    ],
)
def test_what_json_schema_does_not_know_is_an_annotation_unless_strict(unknown: Schema, says: str) -> None:
    wanted = {"type": "object", "properties": {"a": {"type": "string", **unknown}}, "required": ["a"]}
    found = made(json_schema(wanted))
    assert accepts(found, '{"a": "x"}')
    assert not accepts(found, '{"a": 3}')
    assert accepts(found, '{"a": null}') is ("nullable" in unknown)
    assert says in refusal(wanted, strict=True)


@pytest.mark.parametrize(
    ("wanted", "right", "wrong"),
    [
        ({"type": "integer", "nullable": True}, ("3", "null"), ('"x"',)),
        ({"type": ["integer", "null"], "nullable": True}, ("3", "null"), ('"x"',)),
        ({"$ref": "#/$defs/n", "nullable": True, "$defs": {"n": {"type": "integer"}}}, ("3", "null"), ('"x"',)),
        ({"allOf": [{"type": "integer"}], "nullable": True}, ("3", "null"), ('"x"',)),
        # As OpenAPI says: an enumeration lists null itself.
        ({"type": "string", "enum": ["a", None], "nullable": True}, ('"a"', "null"), ('"b"',)),
        ({"type": "string", "enum": ["a"], "nullable": True}, ('"a"',), ("null",)),
        ({"type": "integer", "nullable": False}, ("3",), ("null",)),
    ],
)
def test_nullable_is_openapis(wanted: Schema, right: tuple[str, ...], wrong: tuple[str, ...]) -> None:
    found = made(json_schema(wanted))
    assert [accepts(found, text) for text in right] == [True] * len(right)
    assert [accepts(found, text) for text in wrong] == [False] * len(wrong)


@pytest.mark.parametrize(
    ("wanted", "right", "wrong"),
    [
        ({"anyOf": [{"type": "null"}, False]}, "null", "1"),
        ({"properties": {"a": False, "b": {}}}, '{"b": 1}', '{"a": 1}'),
        ({"type": ["array", "null"], "items": False, "minItems": 1}, "null", "[]"),
        ({"type": "array", "prefixItems": [{"type": "null"}, False]}, "[null]", "[null, 1]"),
    ],
)
def test_what_has_no_instance_is_left_out(wanted: Schema, right: str, wrong: str) -> None:
    found = made(json_schema(wanted))
    assert accepts(found, right)
    assert not accepts(found, wrong)


def test_an_object_that_needs_more_than_it_declares_stays_open() -> None:
    wanted = {"type": "object", "properties": {"a": {}}, "required": ["a"], "minProperties": 2}
    assert "additionalProperties" not in schema.checked(wanted)
    assert accepts(made(json_schema(wanted)), '{"a": 1, "x": 2}')
    assert not accepts(made(json_schema(wanted)), '{"a": 1}')


def test_references_into_any_place() -> None:
    wanted = {
        "type": "object",
        "properties": {
            "a/b~c d": {"type": "integer", "maximum": 3, "minimum": 0},
            "list": {"type": "array", "items": [{"type": "null"}, {"$ref": "#/properties/a~1b~0c%20d"}], "minItems": 2},
            "again": {"$ref": "#/properties/list/items/1"},
        },
        "required": ["again", "list"],
    }
    found = made(json_schema(wanted))
    assert accepts(found, '{"list": [null, 3], "again": 0}')
    assert not accepts(found, '{"list": [null, 3], "again": 4}')


def test_a_function_without_parameters_gets_none() -> None:
    found = made(json_schema({"type": "object", "properties": {}}))
    assert accepts(found, "{}")
    assert not accepts(found, '{"a": 1}')


def test_objects_that_are_combined_stay_open() -> None:
    parts = [{"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]} for name in "ab"]
    found = made(json_schema({"allOf": parts}))
    assert accepts(found, '{"a": 1, "b": 2}')
    assert not accepts(found, '{"a": 1}')
    found = made(json_schema({"$ref": "#/$defs/a", **parts[1], "$defs": {"a": parts[0]}}))
    assert accepts(found, '{"a": 1, "b": 2}')


class Leaf(BaseModel):
    kind: Literal["leaf"]
    name: str = Field(description="a name", min_length=1, max_length=20, pattern="^[A-Z]")


class Branch(BaseModel):
    kind: Literal["branch"]
    children: list[Branch | Leaf] = Field(max_length=3)
    weight: float | None = Field(default=None, ge=0, le=1)


class Tree(BaseModel):
    """A tree."""

    root: Branch | Leaf = Field(discriminator="kind")
    tags: dict[str, int]
    size: tuple[int, str]
    note: str | None
    colour: Literal["red", "blue"] = "red"


@pytest.mark.parametrize("model", [Leaf, Branch, Tree])
@pytest.mark.parametrize("strict", [True, False])
def test_what_the_openai_sdk_and_pydantic_write(model: type[BaseModel], strict: bool) -> None:
    wanted = to_strict_json_schema(model) if strict else model.model_json_schema()
    found = made(json_schema(wanted))
    leaf = Leaf(kind="leaf", name="Oak")
    branch = Branch(kind="branch", children=[leaf, Branch(kind="branch", children=[], weight=0.5)], weight=None)
    samples: dict[type[BaseModel], BaseModel] = {
        Leaf: leaf,
        Branch: branch,
        Tree: Tree(root=branch, tags={"x": 1}, size=(1, "m"), note=None),
    }
    value = samples[model].model_dump(mode="json")
    jsonschema.validate(value, wanted)
    text = json.dumps(value)
    assert accepts(found, text)
    assert not accepts(found, text.replace("Oak", "oak"))


def llguidance_says(found: Any) -> list[str]:
    _, messages = LLMatcher.validate_grammar_with_warnings(LLMatcher.grammar_from_json_schema(json.dumps(found)))
    return list(messages)


@pytest.mark.parametrize("keyword", sorted(keywords.REFUSED.keys() - {"nullable", "$vocabulary"}))
def test_llguidance_honours_nothing_that_is_refused(keyword: str) -> None:
    value = {"minContains": 1, "maxContains": 1, "uniqueItems": True}.get(keyword, {"a": ["b"]})
    assert any(keyword in message for message in llguidance_says({"type": ["object", "array"], keyword: value}))


@pytest.mark.parametrize("name", keywords.FORMATS)
def test_llguidance_knows_the_formats(name: str) -> None:
    assert llguidance_says({"type": "string", "format": name}) == []


def test_every_keyword_is_in_one_place() -> None:
    of_type = [key for keys in keywords.OF_TYPE.values() for key in keys]
    honoured = {"type", *keywords.APPLICATORS, *keywords.VALUES, *of_type} - keywords.REFUSED.keys()
    assert len(of_type) == len(set(of_type))
    assert not honoured & keywords.ANNOTATIONS
    assert not keywords.REFUSED.keys() & keywords.ANNOTATIONS
    documented = keywords.__doc__ or ""
    for key in honoured - {"exclusiveMinimum", "exclusiveMaximum", "maximum", "additionalItems"}:
        assert f"`{key}`" in documented, key
