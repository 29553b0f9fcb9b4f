"""Grammars for TensorRT-LLM's guided decoding: the form that its library gets, by version, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from openai_bls.core.engine_types import EngineInfo
from openai_bls.core.errors import InvalidRequestError
from openai_bls.output.reasoning_parser import Reasoning
from openai_bls.output.structured import grammar, has_structural_tags
from tests.unit.output.structured.driving import EMBEDDED, XGRAMMAR, json_schema, trtllm

FLOW_TENSORRT = trtllm("1.2.1", "xgrammar", "json_schema", "regex", "ebnf")
OLD = trtllm("0.21.0", "xgrammar", "json_schema", "regex", "ebnf")
LLGUIDANCE = trtllm("1.2.1", "llguidance", "json_schema", "regex", "lark")

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
REGEX = {"type": "regex", "pattern": "a+[^b]\\d{2}|é."}
GBNF = {"type": "grammar", "grammar": 'root ::= "(" root ")" | [a-z]{1,3} [^"]'}
LARK = {"type": "grammar", "grammar": "start: /a/"}
CHOICE = {"type": "or", "elements": [{"type": "const_string", "value": text} for text in ("a b", "(c", "日")]}
TAG = {"type": "tag", "begin": "<f>", "content": json_schema(OBJECT), "end": "</f>"}
TRIGGERED = {"type": "triggered_tags", "triggers": ["<f"], "tags": [TAG]}
THINKING = Reasoning("<think>", "</think>")


def refusal(wanted: dict[str, Any], info: EngineInfo) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        grammar(wanted, info, param="p")
    assert caught.value.param == "p"
    return caught.value.message


@pytest.mark.parametrize(
    ("wanted", "info", "kind", "text"),
    [
        (REGEX, FLOW_TENSORRT, "regex", "a+[^b][0-9]{2}|é[^\\n\\r]"),
        (CHOICE, OLD, "regex", "(a b)|(\\(c)|(日)"),
        (CHOICE, LLGUIDANCE, "regex", "(?:a b|\\(c|日)"),
        (LARK, LLGUIDANCE, "lark", "start: /a/"),
        (
            {"type": "grammar", "grammar": 'root ::= "a!" b?\nb ::= [0-9]'},
            XGRAMMAR,
            "ebnf",
            'root ::= ("a\\U00000021") ((b){0,1})\nb ::= [0-9]',
        ),
    ],
)
def test_texts(wanted: dict[str, Any], info: EngineInfo, kind: str, text: str) -> None:
    found = grammar(wanted, info, param="p")
    assert (found.kind, found.text) == (kind, text)


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        # What is not said is written out: its strict mode would allow nothing else.
        ({"type": "object"}, {"type": "object", "additionalProperties": True}),
        ({"type": "array"}, {"type": "array", "items": True}),
        ({"type": "integer", "exclusiveMaximum": 7.5}, {"type": "integer", "exclusiveMaximum": 8}),
        ({"oneOf": [{"const": 1}, {"const": "a"}]}, {"anyOf": [{"enum": [1]}, {"enum": ["a"]}]}),
    ],
)
@pytest.mark.parametrize("info", [XGRAMMAR, FLOW_TENSORRT, OLD], ids=["1.2.1", "tensorrt", "0.21"])
def test_json_schemas(schema: Any, found: Any, info: EngineInfo) -> None:
    made = grammar(json_schema(schema), info, param="p")
    assert made.kind == "json_schema"
    assert json.loads(made.text) == found


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "string", "pattern": "a"}, "'pattern' cannot be enforced by this server's engine"),
        ({"type": "number", "minimum": 1}, "'minimum'"),
        ({"$ref": "#/$defs/s", "enum": ["a"], "$defs": {"s": {"type": "string"}}}, "'enum' beside '$ref'"),
        ({"enum": [1.5]}, "'enum' of 1.5"),
        ({"enum": ["Größe"]}, "a hexadecimal digit (0-9, a-f) follows"),
        ({"properties": {"Größe": {}}}, "a hexadecimal digit (0-9, a-f) follows"),
        ({**OBJECT, "additionalProperties": {}}, "'additionalProperties' beside 'properties'"),
        ({"type": "object", "required": ["z"]}, "'required'"),
        ({"properties": {f"p{at}": {} for at in range(101)}}, "'properties' with over 100"),
        ({"type": "array", "maxItems": 1001}, "'maxItems' above 1000"),
        ({"type": "array", "items": False}, "'false' cannot be enforced"),
        ({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}, "no integer lies between"),
        ({"$ref": "#"}, "nothing would match"),
        ({"not": {}}, "'not' cannot be enforced"),
    ],
)
def test_schemas_that_xgrammar_would_let_pass(schema: Any, says: str) -> None:
    assert says in refusal(json_schema(schema), XGRAMMAR)


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"type": "regex", "pattern": "(a*)*"}, "a repeated part that may be empty"),
        ({"type": "regex", "pattern": "(a|b?){3}"}, "a repeated part that may be empty"),
        ({"type": "regex", "pattern": "[a-z]?" * 30}, "over 20 parts that may be left out"),
        ({"type": "regex", "pattern": "([a-z]?b){30}"}, "over 20 parts that may be left out"),
        ({"type": "regex", "pattern": "a{1,5000}"}, "over 1000 states"),
        ({"type": "regex", "pattern": "\\W"}, "leave out some characters beyond ASCII"),
        ({"type": "regex", "pattern": "[^\\s]"}, "leave out some characters beyond ASCII"),
        ({"type": "regex", "pattern": "[à-ü]"}, "sets of characters beyond ASCII"),
        ({"type": "regex", "pattern": "Größe"}, "a hexadecimal digit"),
        ({"type": "grammar", "grammar": 'root ::= ("a"?)*'}, "a repeated part that may be empty"),
        ({"type": "grammar", "grammar": 'root ::= a*\na ::= "x" | ""'}, "a repeated part that may be empty"),
        ({"type": "grammar", "grammar": 'root ::= root "a" | "b"'}, "begins with itself"),
        ({"type": "grammar", "grammar": 'root ::= e root "a" | "b"\ne ::= ""'}, "begins with itself"),
        ({"type": "grammar", "grammar": "root ::= " + '"a"? ' * 30}, "over 20 parts that may be left out"),
        ({"type": "grammar", "grammar": "root ::= [^é]"}, "sets of characters beyond ASCII"),
        (LARK, "a Lark grammar takes llguidance"),
        ({"type": "star", "content": TAG}, "formats of the type 'star' are not supported by this"),
        ({"type": "any_text", "excludes": ["x" * 401]}, "over 400 characters"),
        ({"type": "const_string", "value": "\x00"}, "the character NUL"),
    ],
)
def test_expressions_that_take_xgrammar_long_or_that_it_gets_wrong(wanted: dict[str, Any], says: str) -> None:
    assert says in refusal(wanted, XGRAMMAR)


def test_clients_expressions_are_not_for_an_xgrammar_that_they_end() -> None:
    assert "TensorRT-LLM before 1.0" in refusal(REGEX, OLD)
    assert "TensorRT-LLM before 1.0" in refusal(GBNF, OLD)
    assert grammar(json_schema(OBJECT), OLD, param="p").kind == "json_schema"


def test_structural_tags() -> None:
    xml = {"type": "tag", "begin": "<f>", "content": {**json_schema(OBJECT), "style": "qwen_xml"}, "end": "</f>"}
    for wanted, has in (
        (TRIGGERED, '"triggered_tags"'),
        (xml, '"qwen_xml_parameter"'),
        (THINKING.constraint(json_schema(OBJECT), opened=False), '"root ::= \\"\\""'),
    ):
        found = grammar(wanted, XGRAMMAR, param="p")
        assert found.kind == "structural_tag"
        assert has in found.text
        for info in (FLOW_TENSORRT, OLD, LLGUIDANCE):
            assert "structural tags" in refusal(wanted, info)
    for style in ("glm_xml", "minimax_xml", "deepseek_xml"):
        other = {**xml, "content": {**json_schema(OBJECT), "style": style}}
        assert f"'{style}' cannot be enforced" in refusal(other, XGRAMMAR)
    excluding = {**TRIGGERED, "excludes": ["<g"]}
    assert grammar(excluding, XGRAMMAR, param="p").kind == "structural_tag"
    assert "takes TensorRT-LLM 1.2.1" in refusal(excluding, trtllm("1.2.0", "xgrammar", *XGRAMMAR.grammar_kinds))
    assert [has_structural_tags(info) for info in (EMBEDDED, XGRAMMAR, OLD, LLGUIDANCE)] == [True, True, False, False]


def test_llguidance_of_tensorrt_llm() -> None:
    """0.7.29 knows no "uri" and cannot keep free names from repeating a declared one under an escape."""
    assert grammar(json_schema({"type": "string", "pattern": "a"}), LLGUIDANCE, param="p").kind == "json_schema"
    assert grammar(GBNF, LLGUIDANCE, param="p").kind == "lark"
    assert "'format' \"uri\"" in refusal(json_schema({"type": "string", "format": "uri"}), LLGUIDANCE)
    assert "'additionalProperties'" in refusal(json_schema({**OBJECT, "additionalProperties": {}}), LLGUIDANCE)
