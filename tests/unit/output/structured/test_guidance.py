"""What vLLM's guidance backend gets: the embedded engine's grammars, less what its older llguidance lets pass."""

from __future__ import annotations

from typing import Any

import pytest

from openai_bls.core.errors import InvalidRequestError
from openai_bls.output.structured import Format, grammar, has_structural_tags, has_style
from tests.unit.core_support import engine_info
from tests.unit.output.structured.driving import json_schema, made

VLLM = engine_info(
    engine="vllm",
    grammar_dialect="guidance",
    version="vllm 0.32.0",
    grammar_backend="llguidance",
    grammar_kinds=("json_schema", "regex", "lark"),
)
OPEN = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": True}
CLOSED = {"type": "object", "properties": {"a": {"type": "integer"}}}


def tag(schema: Any, **changes: Any) -> Format:
    return {"type": "tag", "begin": "<f>", "content": {**json_schema(schema), **changes}, "end": "</f>"}


@pytest.mark.parametrize(
    "wanted",
    [
        json_schema(CLOSED),
        json_schema({"type": "object"}),
        json_schema({"type": "object", "additionalProperties": {"type": "integer"}}),
        json_schema({"type": "integer", "multipleOf": 3, "minimum": 0}),
        json_schema({"type": "number", "multipleOf": 0.5, "exclusiveMinimum": 0}),
        json_schema({"type": "object", "patternProperties": {"^a": {"type": "null"}}}),
        json_schema({"type": "string", "format": "uri"}),
        json_schema({"allOf": [CLOSED]}),
        {"type": "regex", "pattern": "a+"},
        {"type": "or", "elements": [{"type": "const_string", "value": text} for text in ("yes", "no")]},
        {"type": "grammar", "grammar": 'root ::= "a" root | "b"'},
        {"type": "grammar", "grammar": "start: /a/"},
        tag(CLOSED),
        tag(OPEN, style="qwen_xml"),
        {"type": "triggered_tags", "triggers": ["<f>"], "tags": [tag(CLOSED)]},
    ],
)
def test_the_same_grammars_as_the_embedded_engine(wanted: Format) -> None:
    assert grammar(wanted, VLLM, param="x") == made(wanted)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (OPEN, "'additionalProperties' .*'properties'"),
        ({"allOf": [CLOSED, {"type": "object", "properties": {"b": {}}}]}, "'additionalProperties' .*'properties'"),
        ({"type": "object", "patternProperties": {"^a": {}}, "additionalProperties": {}}, "'additionalProperties'"),
        ({"type": "integer", "multipleOf": 3}, "'multipleOf' .*negative"),
        ({"type": "number", "multipleOf": 0.5, "minimum": -0.5}, "'multipleOf' .*negative"),
    ],
)
@pytest.mark.parametrize("around", [lambda schema: schema, lambda schema: {"type": "array", "items": schema}])
@pytest.mark.parametrize("whole", [json_schema, tag, lambda schema: {"type": "sequence", "elements": [tag(schema)]}])
def test_what_it_would_let_pass_is_refused(schema: Any, says: str, around: Any, whole: Any) -> None:
    wanted = whole(around(schema))
    made(wanted)  # the embedded engine enforces it
    with pytest.raises(InvalidRequestError, match=says):
        grammar(wanted, VLLM, param="x")


def test_names_that_are_tags_have_no_escapes_but_those_within_have() -> None:
    within = {"type": "object", "properties": {"a": OPEN}}
    with pytest.raises(InvalidRequestError, match="additionalProperties"):
        grammar(tag(within, style="qwen_xml"), VLLM, param="x")


def test_an_engine_without_a_backend_has_none() -> None:
    info = engine_info(engine="vllm", grammar_dialect="guidance", grammar_backend="")
    for wanted in (json_schema(CLOSED), {"type": "grammar", "grammar": "start: /a/"}):
        with pytest.raises(InvalidRequestError, match="no grammars"):
            grammar(wanted, info, param="x")


def test_structural_tags_and_styles() -> None:
    assert has_structural_tags(VLLM)
    assert has_style(VLLM, "glm_xml")
    assert not has_structural_tags(engine_info(engine="vllm", grammar_dialect="guidance", grammar_backend=""))
