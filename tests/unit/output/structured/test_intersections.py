"""Patterns that a string must match at once are few, however they come together."""

from __future__ import annotations

import json
from typing import Any

import pytest

from openai_bls.core.engine_types import Grammar
from openai_bls.core.errors import InvalidRequestError
from openai_bls.output.structured import grammar, requested
from openai_bls.output.structured.errors import FormatError
from openai_bls.output.structured.intersections import check

BOTH = ("xgrammar", "llguidance")


def patterned(at: int) -> dict[str, Any]:
    return {"type": "string", "pattern": f".*{chr(97 + at % 26)}.{{{at + 5}}}"}


def nested(count: int) -> dict[str, Any]:
    schema = patterned(0)
    for at in range(1, count):
        schema = {"allOf": [schema, patterned(at)]}
    return schema


def joined(count: int) -> dict[str, dict[str, Any]]:
    parts = [patterned(at) for at in range(count)]
    chain: dict[str, Any] = {f"c{at}": {"$ref": f"#/$defs/c{at + 1}", **patterned(at)} for at in range(count)}
    return {
        "plain": {"allOf": parts},
        "nested": nested(count),
        "referred to": {
            "$defs": {str(at): part for at, part in enumerate(parts)},
            "allOf": [{"$ref": f"#/$defs/{at}"} for at in range(count)],
        },
        "beside references": {"$defs": {**chain, f"c{count}": True}, "$ref": "#/$defs/c0", "type": "string"},
        "of properties": {"allOf": [{"type": "object", "properties": {"p": part}} for part in parts]},
    }


def ask(**fields: Any) -> Grammar:
    found = requested(fields)
    assert found is not None
    return grammar(found.format, backends=BOTH, param=found.param)


@pytest.mark.parametrize("form", joined(1))
def test_too_many_are_refused_before_anything_is_worked_out(form: str) -> None:
    with pytest.raises(InvalidRequestError, match="more than 8 schemas"):
        ask(guided_json=joined(40)[form])


def test_in_a_lark_grammar() -> None:
    with pytest.raises(InvalidRequestError, match="more than 8 schemas"):
        ask(guided_grammar="start: X\nX: %json " + json.dumps(joined(40)["plain"]))


def test_few_are_taken() -> None:
    for schema in joined(2).values():
        assert ask(guided_json=schema).backend == "llguidance"
    plain = {"allOf": [{"type": "object", "properties": {f"p{at}": {"type": "integer"}}} for at in range(30)]}
    assert ask(guided_json=plain).backend == "llguidance"


def test_what_is_too_much_for_llguidance_is_told_plainly() -> None:
    with pytest.raises(InvalidRequestError, match="patterns and lengths") as info:
        ask(guided_json=joined(8)["plain"])
    assert "SearchRegex" not in info.value.message


def test_the_looking_itself_is_bounded() -> None:
    large = {"properties": {str(at): {"type": "integer"} for at in range(1000)}}
    schema = {"$defs": {"large": large}, "anyOf": [{"allOf": [{"$ref": "#/$defs/large"}]} for _ in range(1000)]}
    with pytest.raises(FormatError, match="too much of the schema"):
        check(schema)
    check({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"})
