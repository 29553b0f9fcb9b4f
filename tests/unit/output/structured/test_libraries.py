"""What `keywords` says of the libraries, held against the libraries themselves: a new release may change it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import xgrammar
from llguidance import LLMatcher

from openai_bls.output.structured import keywords
from openai_bls.output.structured.rendering import JSON_OPTIONS
from tests.unit.output.structured.driving import XGRAMMAR, accepts, json_schema, made

ITEMS = {"type": "array", "items": {"type": "integer"}}


def xgrammar_accepts(schema: Any, text: str) -> bool:
    """What xgrammar itself makes of a schema, in white space as here."""
    found = xgrammar.Grammar.from_json_schema(
        json.dumps(schema), any_whitespace=False, separators=(", ", ": "), strict_mode=False
    )
    info = xgrammar.TokenizerInfo([bytes([byte]) for byte in range(256)], stop_token_ids=[])
    matcher = xgrammar.GrammarMatcher(xgrammar.GrammarCompiler(info, max_threads=1).compile_grammar(found))
    return all(matcher.accept_token(byte) for byte in text.encode("utf-8", "surrogatepass")) and matcher.is_completed()


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string", "minLength": 1}, '"\t"'),
        ({"type": "string", "format": "unheard-of"}, '"x"'),
        ({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {}}, '{"\\u0061": "x"}'),
        ({"anyOf": [{"type": "string"}], "maxLength": 1}, '"xyz"'),
        ({"$ref": "#/$defs/s", "enum": ["a"], "$defs": {"s": {"type": "string"}}}, '"xyz"'),
        ({"type": "string", "enum": [1]}, "1"),
        ({"type": "integer", "multipleOf": 3, "minimum": 0}, "4"),
        ({"type": "number", "multipleOf": 3}, "4"),
        ({**ITEMS, "uniqueItems": True}, "[1, 1]"),
        ({**ITEMS, "contains": {"const": 3}}, "[1]"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, '{"a": 1}'),
        ({"type": "string", "not": {"const": "a"}}, '"a"'),
        ({"if": {"type": "string"}, "then": {"const": "a"}}, '"b"'),
        ({"allOf": [{"type": "string"}, {"maxLength": 1}]}, '"xyz"'),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "1"),
        ({"type": "string"}, '"\\ud83d"'),
        ({"type": "string"}, '"\ud83d"'),
    ],
)
def test_what_xgrammar_lets_pass(schema: Any, text: str) -> None:
    """Why these schemas, or the grammars that it writes, are not left to it as they are."""
    assert xgrammar_accepts(schema, text)


@pytest.mark.parametrize("text", ['"\\ud83d"', '"\\udfff\\ud83d"', '"\\u"'])
def test_half_surrogate_pairs_do_not_pass_here(text: str) -> None:
    found = made(json_schema({"type": "string"}), XGRAMMAR)
    assert not accepts(found, text)
    assert accepts(found, '"\\ud83d\\udE00\\uFFFF\\ud7ff\\u00e9"')


def llguidance_says(schema: Any) -> list[str]:
    text = LLMatcher.grammar_from_json_schema(json.dumps({**schema, "x-guidance": JSON_OPTIONS}))
    _, messages = LLMatcher.validate_grammar_with_warnings(text)
    return list(messages)


@pytest.mark.parametrize("keyword", sorted(keywords.REFUSED.keys() - {"nullable", "$vocabulary"}))
def test_llguidance_honours_nothing_that_is_refused(keyword: str) -> None:
    value = {"minContains": 1, "maxContains": 1, "uniqueItems": True}.get(keyword, {"a": ["b"]})
    assert any(keyword in message for message in llguidance_says({"type": ["object", "array"], keyword: value}))


@pytest.mark.parametrize("name", keywords.FORMATS)
def test_llguidance_knows_the_formats(name: str) -> None:
    assert llguidance_says({"type": "string", "format": name}) == []


def test_llguidance_says_what_it_does_not_honour() -> None:
    assert llguidance_says({"type": "string", "format": "iri"}) == ["Unknown format: iri"]
    assert "not disjoint" in llguidance_says({"patternProperties": {"^a": {}, "b$": {}}})[0]
    assert "oneOf" in llguidance_says({"oneOf": [{"minimum": 3}, {"maximum": 4}]})[0]


def test_every_keyword_is_in_one_place() -> None:
    of_type = [key for keys in keywords.OF_TYPE.values() for key in keys]
    honoured = {"type", *keywords.APPLICATORS, *keywords.VALUES, *of_type} - keywords.REFUSED.keys()
    assert len(of_type) == len(set(of_type))
    assert not honoured & keywords.ANNOTATIONS
    assert not keywords.REFUSED.keys() & keywords.ANNOTATIONS
    documented = keywords.__doc__ or ""
    for key in honoured - {"exclusiveMinimum", "exclusiveMaximum", "maximum", "additionalItems"}:
        assert f"`{key}`" in documented, key
