from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.output.events import ContentDelta, ToolCallArguments, ToolCallStart
from openai_bls.output.tool_parsers import kinds
from openai_bls.output.tool_parsers.families.qwen3_coder import xml_calls
from openai_bls.output.tool_parsers.kinds import Kind, as_json, property_kind
from openai_bls.output.tool_parsers.parser import ToolCallParser
from tests.unit.output.parsing import (
    Found,
    check_any_cut,
    check_every_split,
    check_linear_time,
    content,
    cut,
    cut_lengths,
    json_values,
    moderate,
    run,
)

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "metric": {"type": "boolean"},
        "where": {"type": "object"},
        "unit": {"$ref": "#/$defs/Unit"},
        "note": {"type": ["string", "null"]},
        "any": {},
    },
    "$defs": {"Unit": {"type": "string", "enum": ["C", "F"]}},
}
SYNTAX = xml_calls({"weather": SCHEMA})


def new() -> ToolCallParser:
    return ToolCallParser(SYNTAX)


def block(name: str, **values: str) -> str:
    """As Qwen3-Coder's template writes it."""
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def weather(arguments: str) -> tuple[str, str, str]:
    return ("call", "weather", arguments)


PARIS = block("weather", city="Paris")
PARIS_CALL = weather('{"city": "Paris"}')

EXAMPLES: dict[str, Found] = {
    "": [],
    "a <b> <tool": [content("a <b> <tool")],
    PARIS: [PARIS_CALL],
    f"I look.\n\n{PARIS}\n{PARIS}\n": [content("I look.\n\n"), PARIS_CALL, PARIS_CALL],
    f"{PARIS} and {PARIS} done": [PARIS_CALL, content(" and "), PARIS_CALL, content(" done")],
    "<tool_call><function=f></function></tool_call>": [("call", "f", "{}")],
    block("f"): [("call", "f", "{}")],
    block("weather", city="Paris", days="3", metric="True", note="None", any="[1]", where='{"x": "}"}', unit="C"): [
        weather(
            '{"city": "Paris", "days": 3, "metric": true, "note": null, "any": [1], "where": {"x": "}"}, "unit": "C"}'
        )
    ],
    block("weather", city='\n 你好 "x" \\ {}</tool_call>\n\n</parameter </param', days="three", unit="\n F \n"): [
        weather(
            '{"city": "\\n 你好 \\"x\\" \\\\ {}</tool_call>\\n\\n</parameter </param", "days": "three", "unit": "F"}'
        )
    ],
    "<tool_call>\n<function=weather>\n<parameter=city>Paris</parameter><parameter=note></parameter></function>": [
        weather('{"city": "Paris", "note": ""}')
    ],
    block("unknown", x="1", y="text"): [("call", "unknown", '{"x": 1, "y": "text"}')],
    "<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call> done": [
        PARIS_CALL,
        content(" done"),
    ],
    # No calls
    "<tool_call>": [content("<tool_call>")],
    "</tool_call>": [content("</tool_call>")],
    "a</tool_call>b": [content("a</tool_call>b")],
    '<tool_call>\n{"name": "f"}\n</tool_call>': [content('<tool_call>\n{"name": "f"}\n</tool_call>')],
    "<function=f>(x)": [content("<function=f>(x)")],
    "<function=>\n</function>": [content("<function=>\n</function>")],
    "<function= >\n</function>": [content("<function= >\n</function>")],
    f"<tool_call>\n<tool_call>{PARIS}": [content("<tool_call>\n<tool_call>"), PARIS_CALL],
    f"<function=a<{PARIS}": [content("<function=a<"), PARIS_CALL],
    # Broken off: the call keeps what it got
    "<function=weather><parameter=city>Paris</parameter> and </tool_call>": [
        weather('{"city": "Paris"'),
        content("and </tool_call>"),
    ],
    "<function=weather><parameter=city>Paris</parameter></functional>": [
        weather('{"city": "Paris"'),
        content("</functional>"),
    ],
    "<function=weather><parameter=city\n": [weather("{"), content("<parameter=city\n")],
    "<function=weather>\n<parameter= >": [weather("{"), content("<parameter= >")],
    # Cut off
    "<tool_call>\n<function=wea": [content("<tool_call>\n<function=wea")],
    "<tool_call>\n<function=weather>\n<para": [content("<tool_call>\n<function=weather>\n<para")],
    "<function=weather><parameter=ci": [weather("{")],
    "<function=weather><parameter=city>\nPar": [weather('{"city": "Par')],
    "<function=weather><parameter=city>\nParis\n</param": [weather('{"city": "Paris')],
    "<function=weather><parameter=days>\n1": [weather('{"days": 1')],
    '<function=weather><parameter=note>\nsay "': [weather('{"note": "say \\"')],
    "<function=weather><parameter=city>Paris</parameter></function>\n</tool": [PARIS_CALL],
}


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_however_they_are_cut(text: str) -> None:
    check_every_split(new, text, EXAMPLES[text])


parts = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<function=", "weather", ">", "</function>", "<parameter=", "</parameter>"),
        *("city", "days", "note", "\n", " ", "<", '"', "12", "null", "text", "你", "\\", "{"),
        *EXAMPLES,
    ]
)


@moderate
@given(text=st.lists(parts, max_size=8).map("".join), lengths=cut_lengths)
def test_any_cut_equals_the_whole(text: str, lengths: list[int]) -> None:
    check_any_cut(new, text, lengths)


plain_text = st.text(max_size=20).filter(lambda text: "</parameter>" not in text)


@moderate
@given(
    city=plain_text,
    days=st.integers(),
    metric=st.booleans(),
    where=st.dictionaries(st.text(max_size=4), json_values, max_size=3),
    lengths=cut_lengths,
)
def test_values_come_back_as_the_schema_has_them(
    city: str, days: int, metric: bool, where: dict[str, Any], lengths: list[int]
) -> None:
    written = json.dumps(where, ensure_ascii=False)
    if "</parameter>" in written:
        return
    text = block("weather", city=city, days=str(days), metric=str(metric), where=written)
    [(_, name, arguments)] = run(new(), cut(text, lengths))
    assert name == "weather"
    assert json.loads(arguments) == {"city": city, "days": days, "metric": metric, "where": where}


def test_strings_stream() -> None:
    parser = ToolCallParser(SYNTAX, lambda: "call_x")
    assert parser.push("so <tool_call>\n<function=weather>\n") == [ContentDelta("so ")]
    assert parser.push("<parameter=") == [ToolCallStart(0, "call_x", "weather"), ToolCallArguments(0, "{")]
    assert parser.push("city>\nNew ") == [ToolCallArguments(0, '"city": "New ')]
    assert parser.push("York\n</") == [ToolCallArguments(0, "York")]
    assert parser.push("b>\n") == [ToolCallArguments(0, "\\n</b>")]
    assert parser.push("</parameter><parameter=days>1") == [ToolCallArguments(0, '", "days": ')]
    assert parser.push("2</parameter>") == [ToolCallArguments(0, "12")]
    assert parser.push("</function>") == [ToolCallArguments(0, "}")]
    assert parser.push("\n</tool_call>") == []
    assert parser.finish() == []


def test_seed_oss_has_another_outer_tag() -> None:
    text = PARIS.replace("tool_call", "seed:tool_call")
    assert run(ToolCallParser(xml_calls({"weather": SCHEMA}, "seed:tool_call")), [text]) == [PARIS_CALL]


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


@pytest.mark.parametrize(
    ("begin", "repeated"),
    [
        ("<function=weather><parameter=city>", "a"),
        ("<function=weather><parameter=city>", "\n"),
        ("<function=weather><parameter=days>", "<"),
        ("<function=", "a"),
        ("", "<tool_call>"),
    ],
)
def test_long_texts_take_linear_time(begin: str, repeated: str) -> None:
    check_linear_time(new, begin, repeated)


def test_references_that_fan_out_and_go_round_are_followed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []
    resolve = kinds._resolve

    def look(root: dict[str, Any], reference: str) -> Any:
        looked_at.append(reference)
        return resolve(root, reference)

    monkeypatch.setattr(kinds, "_resolve", look)
    fan = {"properties": {"x": {"anyOf": [{"$ref": "#/properties/x"}] * 8}}}
    assert property_kind(fan, "x") == Kind()
    assert len(looked_at) == 1
    names = [f"d{at}" for at in range(12)]
    both = {name: {"anyOf": [{"$ref": f"#/$defs/{other}"} for other in names]} for name in names}
    assert property_kind({"properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": both}, "x") == Kind()
    assert len(looked_at) == 1 + len(names)


def test_a_schema_too_large_to_tell_says_nothing() -> None:
    text = {"type": "string"}
    assert property_kind({"properties": {"x": {"anyOf": [text] * 1_000}}}, "x") == Kind(frozenset({"string"}))
    assert property_kind({"properties": {"x": {"anyOf": [text] * 5_000}}}, "x") == Kind()
    root = {"properties": {"x": {"allOf": [{"$ref": "#/$defs/a"}] * 2}}, "$defs": {"a": {"type": "string"}}}
    assert property_kind(root, "x") == Kind(frozenset({"string"}))
