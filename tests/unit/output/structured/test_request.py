"""Fields of a request: what each form means, and what is refused under which name."""

from __future__ import annotations

from typing import Any

import pytest

from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.request import Requested
from openai_bls.output.reasoning_parser import Reasoning
from openai_bls.output.structured import grammar, requested
from openai_bls.output.tool_parsers.families.json_calls.hermes import HERMES
from tests.unit.output.structured.driving import EMBEDDED, accepts

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
FORMAT = {"type": "json_schema", "json_schema": SCHEMA}
OBJECT = {"type": "json_schema", "json_schema": {"type": "object"}}
TAG = {"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": "</a>"}
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "f"}}]
CHOICE = {"type": "or", "elements": [{"type": "const_string", "value": "a"}, {"type": "const_string", "value": "b"}]}


def json_schema(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA} | fields}


@pytest.mark.parametrize("fields", [{}, {"response_format": None, "guided_json": None}, {"guided_json_object": False}])
def test_nothing(fields: dict[str, Any]) -> None:
    assert requested(fields) is None


def test_text_is_nothing() -> None:
    assert requested({"response_format": {"type": "text"}}) is None


@pytest.mark.parametrize(
    ("fields", "expected", "param"),
    [
        ({"response_format": {"type": "json_object"}}, OBJECT, "response_format"),
        ({"response_format": json_schema()}, FORMAT, "response_format.json_schema.schema"),
        (
            {"response_format": json_schema(strict=True, description="d", name="a-B_9" * 10)},
            {**FORMAT, "strict": True},
            "response_format.json_schema.schema",
        ),
        ({"response_format": json_schema(strict=None)}, FORMAT, "response_format.json_schema.schema"),
        ({"response_format": {"type": "structural_tag", "format": TAG}}, TAG, "response_format"),
        ({"structured_outputs": {"json": SCHEMA}}, FORMAT, "structured_outputs.json"),
        ({"structured_outputs": {"json": "true"}}, {**FORMAT, "json_schema": True}, "structured_outputs.json"),
        ({"structured_outputs": {"json_object": True, "regex": None}}, OBJECT, "structured_outputs.json_object"),
        ({"structured_outputs": {"choice": ["a", "b", "a"]}}, CHOICE, "structured_outputs.choice"),
        ({"structured_outputs": {"regex": "a+"}}, {"type": "regex", "pattern": "a+"}, "structured_outputs.regex"),
        (
            {"structured_outputs": {"grammar": "root ::= [a]"}},
            {"type": "grammar", "grammar": "root ::= [a]"},
            "structured_outputs.grammar",
        ),
        (
            {"structured_outputs": {"structural_tag": '{"format": {"type": "any_text"}}'}},
            {"type": "any_text"},
            "structured_outputs.structural_tag",
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True, "disable_fallback": True}},
            FORMAT,
            "structured_outputs.json",
        ),
        ({"guided_json": '{"type": "object"}', "guided_decoding_backend": "auto"}, OBJECT, "guided_json"),
        ({"guided_json": SCHEMA}, FORMAT, "guided_json"),
        ({"guided_regex": "a"}, {"type": "regex", "pattern": "a"}, "guided_regex"),
        ({"guided_choice": ["a", "b"], "response_format": {"type": "text"}}, CHOICE, "guided_choice"),
        ({"guided_grammar": "start: x"}, {"type": "grammar", "grammar": "start: x"}, "guided_grammar"),
        ({"guided_json_object": True}, OBJECT, "guided_json_object"),
    ],
)
def test_forms(fields: dict[str, Any], expected: dict[str, Any], param: str) -> None:
    assert requested(fields) == Requested(expected, param)


# Field at fault → values of the field that it belongs to.
REFUSED: dict[str, list[Any]] = {
    "response_format": ["json"],
    "response_format.type": [{}, {"type": "xml"}, {"type": "grammar", "grammar": "x"}],
    "response_format.x": [{"type": "json_object", "x": 1}],
    "response_format.json_schema": [{"type": "json_schema"}, {"type": "json_schema", "json_schema": 3}],
    "response_format.json_schema.name": [json_schema(name=name) for name in (None, "a b", "a\n", "a" * 65, 3)],
    "response_format.json_schema.schema": [json_schema(schema=None), json_schema(schema=True)],
    "response_format.json_schema.strict": [json_schema(strict="yes")],
    "response_format.json_schema.description": [json_schema(description=3)],
    "response_format.json_schema.scheme": [json_schema(scheme={})],
    "structured_outputs": [[], {}, {"json_object": False}],
    "structured_outputs.lark": [{"lark": "x"}],
    "structured_outputs.json": [{"json": "{"}, {"json": [1]}],
    "structured_outputs.regex": [{"regex": ""}, {"regex": 3}],
    "structured_outputs.choice": [{"choice": []}, {"choice": "ab"}],
    "structured_outputs.choice[1]": [{"choice": ["a", ""]}, {"choice": ["a", 1]}],
    "structured_outputs.json_object": [{"json_object": 1}],
    "structured_outputs.structural_tag": [{"structural_tag": "3"}],
    "structured_outputs.backend": [{"json": SCHEMA, "backend": "outlines"}],
    "structured_outputs.whitespace_pattern": [{"json": SCHEMA, "whitespace_pattern": " *"}],
    "structured_outputs.disable_additional_properties": [{"json": SCHEMA, "disable_additional_properties": True}],
    "structured_outputs.disable_any_whitespace": [{"json": SCHEMA, "disable_any_whitespace": "no"}],
    "guided_decoding_backend": ["outlines"],
    "guided_whitespace_pattern": [""],
    "guided_json": [3, "\ud800"],
}


@pytest.mark.parametrize(("param", "value"), [(param, value) for param, values in REFUSED.items() for value in values])
def test_refusals_name_the_field(param: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        requested({param.partition(".")[0]: value})
    assert caught.value.param == param
    assert f"'{param}'" in caught.value.message


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"guided_json": {}, "guided_regex": "a"}, ("guided_json", "guided_regex")),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            ("response_format", "structured_outputs.regex"),
        ),
        (
            {"structured_outputs": {"regex": "a", "choice": ["b"]}},
            ("structured_outputs.regex", "structured_outputs.choice"),
        ),
    ],
)
def test_two_at_once(fields: dict[str, Any], names: tuple[str, str]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        requested(fields)
    assert all(f"'{name}'" in caught.value.message for name in names)


OLDER = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}, {"begin": "<g>", "end": "</g>"}],
    "triggers": ["<f", "<g"],
}
NEWER = {"type": "structural_tag", "format": TAG}


def test_the_older_structural_tag() -> None:
    found = requested({"response_format": OLDER})
    assert found is not None
    made = grammar(found.format, EMBEDDED, param=found.param)
    for text in ("so", 'so <f>{"a": "b"}</f> and <g>[1]</g>'):
        assert accepts(made, text)
    assert not accepts(made, "<f>")


@pytest.mark.parametrize(
    ("tag", "text"), [(NEWER, "<a>x</a>"), (OLDER, 'so <f>{"a": "b"}</f>')], ids=["newer", "older"]
)
@pytest.mark.parametrize("field", ["response_format", "structured_outputs"])
def test_structural_tags_are_put_together_with_other_formats(field: str, tag: dict[str, Any], text: str) -> None:
    asked = {field: tag if field == "response_format" else {"structural_tag": tag}}
    found = requested(asked)
    assert found is not None
    thinking = Reasoning("<think>", "</think>")
    calls = HERMES.constraint(TOOLS, at_least_one=True, name=None, parallel=False)
    either = {"type": "or", "elements": [found.format, calls]}
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    for opened, before in ((True, "hm</think>\n\n"), (False, "<think>hm</think>"), (False, "")):
        made = grammar(thinking.constraint(found.format, opened=opened), EMBEDDED, param=found.param)
        assert accepts(made, before + text)
        assert not accepts(made, before + text[:-1])
    made = grammar(either, EMBEDDED, param=found.param)
    assert accepts(made, text)
    assert accepts(made, call)
    assert not accepts(made, text[:-1])


@pytest.mark.parametrize("change", [{"structures": 3}, {"x": 1}, {"structures": [{"begin": "<f>"}]}, {"format": TAG}])
@pytest.mark.parametrize("kind", [None, "structural_tag"])
def test_bad_structural_tags_are_refused_at_once(kind: str | None, change: dict[str, Any]) -> None:
    tag = OLDER | change
    fields = {"response_format": tag} if kind is None else {"structured_outputs": {kind: tag}}
    with pytest.raises(InvalidRequestError) as caught:
        requested(fields)
    assert caught.value.param == ("response_format" if kind is None else f"structured_outputs.{kind}")


@pytest.mark.parametrize("inner", [3, {}, {"type": "xml"}, {"type": []}, NEWER])
def test_what_a_structural_tag_holds_is_a_format(inner: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"'response_format': .*format"):
        requested({"response_format": {"type": "structural_tag", "format": inner}})


@pytest.mark.parametrize("triggers", [[], ["<h"]])
def test_what_a_structural_tag_holds_is_checked_with_the_rest(triggers: list[str]) -> None:
    found = requested({"response_format": OLDER | {"triggers": triggers}})
    assert found is not None
    with pytest.raises(InvalidRequestError) as caught:
        grammar(found.format, EMBEDDED, param=found.param)
    assert caught.value.param == "response_format"
