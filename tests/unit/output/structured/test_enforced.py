"""The one property that counts: whatever comes out complete is what was asked for, and not by the model's merit."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from openai_bls.core.errors import InvalidRequestError
from openai_bls.output.reasoning_parser import Reasoning
from openai_bls.output.structured import Format
from tests.unit.output.structured.driving import accepts, demo, drive, json_schema, made, tiny
from tests.unit.output.structured.schemas import Schema, schemas

SEEDS = st.integers(0, 2**32)
STEADY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])

JSON_A = json_schema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
JSON_3 = json_schema({"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 3}}, "required": ["a"]})
THINKING = Reasoning("<think>", "</think>")


def outputs(wanted: Format, count: int = 12) -> list[str]:
    """Random complete outputs, most of `count`, half of them in tokens of many bytes."""
    wanted_grammar = made(wanted)
    random = Random(1)
    found = [drive(vocabulary, wanted_grammar, random) for vocabulary in [tiny(), demo()] * (count // 2)]
    texts = [raw.decode() for raw in found if raw is not None]
    assert len(texts) > count * 2 // 3
    return texts


def parsed(text: str) -> Any:
    """A JSON text's value, in which no string has half a surrogate pair."""
    value = json.loads(text)
    json.dumps(value, ensure_ascii=False).encode()
    return value


def check_instance(raw: bytes, schema: Schema) -> None:
    value = parsed(raw.decode())
    jsonschema.Draft202012Validator(schema).validate(value)


@pytest.mark.parametrize(
    ("wanted", "right", "wrong"),
    [
        (json_schema({"enum": ["Größe", "été"]}), ['"Größe"', '"été"'], ['"Gröe"', '"Größ"']),
        (
            json_schema({"type": "object", "properties": {"Größe": {"const": "déjà"}}, "required": ["Größe"]}),
            ['{"Größe": "déjà"}'],
            ['{"Gröe": "déjà"}', "{}"],
        ),
        ({"type": "regex", "pattern": "Größe[ßb]?"}, ["Größe", "Größeß", "Größeb"], ["Gröe", "Größec"]),
        ({"type": "grammar", "grammar": 'root ::= "Größe" [éa]'}, ["Größeé", "Größea"], ["Größe", "Größee"]),
        ({"type": "grammar", "grammar": "root ::= [\\^_]+"}, ["^", "_^_"], ["x", "-"]),
        ({"type": "grammar", "grammar": 'root ::= ("a"? "b"?)* "c"'}, ["c", "abbac"], ["ab", "cc"]),
    ],
)
def test_characters_beyond_ascii(wanted: Format, right: list[str], wrong: list[str]) -> None:
    """It reads again what it has printed, and `\\xdfe` is another character than `ß` and `e`."""
    alone = made(wanted)
    begun = made({"type": "tag", "begin": "é", "content": wanted, "end": "e"})
    for text in right:
        assert accepts(alone, text)
        assert accepts(begun, f"é{text}e")
    for text in wrong:
        assert not accepts(alone, text)
        assert not accepts(begun, f"é{text}e")


@settings(STEADY, max_examples=50)
@given(schema=schemas(), seed=SEEDS)
def test_every_complete_output_validates(schema: Schema, seed: int) -> None:
    try:
        wanted = made(json_schema(schema))
    except InvalidRequestError:
        reject()
    random = Random(seed)
    for vocabulary in (tiny(), demo()):
        raw = drive(vocabulary, wanted, random)
        if raw is not None:
            check_instance(raw, schema)


@pytest.mark.parametrize("text", ['"\\n\\"\\\\"', '"😀\u2028"', "-0.5e+10", '{"a": [1, {}], "b": null}', "[]"])
def test_json_that_is_allowed(text: str) -> None:
    wanted = made(json_schema({}))
    assert accepts(wanted, text)


def test_json_is_written_as_json_dumps_writes_it() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "integer"}}}
    for text in outputs(json_schema(schema)):
        # Names that come twice, and escapes that need not be, are the differences.
        assert re.sub(r'"(?:[^"\\]|\\.)*"', "", text).replace(", ", "").replace(": ", "").count(" ") == 0
    value = {"a": [1, 2], "b": []}
    assert accepts(made(json_schema(schema)), json.dumps(value))


def call(name: str, content: Format) -> Format:
    return {"type": "tag", "begin": f"<tool_call>\n{name}: ", "content": content, "end": "\n</tool_call>"}


CALLS = [call("one", JSON_A), call("two", JSON_3)]
ONE = '<tool_call>\none: {"a": 1}\n</tool_call>'
TWO = '<tool_call>\ntwo: {"a": 6}\n</tool_call>'
WRONG = '<tool_call>\ntwo: {"a": 7}\n</tool_call>'
TRIGGERED: Format = {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": CALLS}
SEPARATED: Format = {"type": "tags_with_separator", "tags": CALLS, "separator": "\n"}


@pytest.mark.parametrize(
    ("wanted", "fitting", "others"),
    [
        (TRIGGERED, ["", "hello", ONE, f"x{TWO} y{ONE}z", "<tool"], [WRONG, f"a {WRONG}", "<tool_call>", ONE[:-1]]),
        (TRIGGERED | {"at_least_one": True}, [ONE, f"{TWO} and {ONE}!"], ["", "hello", f"x{ONE}", WRONG]),
        (TRIGGERED | {"at_least_one": True, "stop_after_first": True}, [ONE, TWO], ["", ONE + TWO, f"{ONE} ", WRONG]),
        (TRIGGERED | {"stop_after_first": True}, ["", "hello", f"hi {ONE}"], [f"{ONE} ", f"{ONE}{TWO}", WRONG]),
        (TRIGGERED | {"excludes": ["bad"]}, ["good", f"{ONE}"], ["a bad one", f"{ONE} bad"]),
        (SEPARATED, ["", ONE, f"{ONE}\n{TWO}\n{TWO}"], [f"{ONE}{TWO}", WRONG, f"{ONE}\n"]),
        (SEPARATED | {"at_least_one": True}, [TWO, f"{ONE}\n{TWO}"], ["", f"{ONE}\n"]),
        (SEPARATED | {"stop_after_first": True}, ["", ONE], [f"{ONE}\n{TWO}"]),
        ({"type": "or", "elements": [JSON_3, CALLS[0]]}, ['{"a": 3}', ONE], ['{"a": 4}', TWO, '{"a": 3}' + ONE]),
        (
            {"type": "sequence", "elements": [{"type": "regex", "pattern": r"\n{0,2}"}, JSON_3]},
            ['\n{"a": 3}'],
            ['{"a": 2}'],
        ),
        ({"type": "optional", "content": JSON_3}, ["", '{"a": 3}'], ['{"a": 3}{"a": 3}']),
        ({"type": "star", "content": JSON_3}, ["", '{"a": 3}{"a": 0}'], ['{"a": 3},']),
        ({"type": "plus", "content": JSON_3}, ['{"a": 3}{"a": 0}'], ["", '{"a": 1}']),
        (
            {"type": "sequence", "elements": [{"type": "repeat", "content": JSON_3, "min": 1, "max": 2}, CALLS[0]]},
            [f'{{"a": 3}}{ONE}', f'{{"a": 3}}{{"a": 6}}{ONE}'],
            [ONE, f'{{"a": 3}}{{"a": 3}}{{"a": 3}}{ONE}'],
        ),
        ({"type": "any_text", "excludes": ["ab", "<t"]}, ["", "ba a <", "日"], ["ab", "xaby", "<t"]),
        (
            {"type": "tag", "begin": "<", "content": {"type": "any_text"}, "end": ["/>", ">>"]},
            ["<a/>", "<>>"],
            ["<a", "a>>"],
        ),
    ],
)
def test_structural_tags(wanted: Format, fitting: list[str], others: list[str]) -> None:
    wanted_grammar = made(wanted)
    for text in fitting:
        assert accepts(wanted_grammar, text), text
    for text in others:
        assert not accepts(wanted_grammar, text), text


def test_arguments_written_as_xml() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
    content = {"type": "json_schema", "json_schema": {**schema, "required": ["city"]}, "style": "qwen_xml"}
    wanted = made({"type": "tag", "begin": "<function=f>", "content": content, "end": "</function>"})
    city, days = '<parameter=city>\nIn "A"\n</parameter>\n', "<parameter=days>\n3\n</parameter>\n"
    assert accepts(wanted, f"<function=f>\n{city}{days}</function>")
    assert accepts(wanted, f"<function=f>\n{city}</function>")
    assert not accepts(wanted, f"<function=f>\n{days}</function>")
    assert not accepts(wanted, f"<function=f>\n{city}{days.replace('3', 'x')}</function>")


@pytest.mark.parametrize(
    ("style", "good", "bad"),
    [
        (
            "glm_xml",
            [
                "\n<arg_key>city</arg_key>\n<arg_value>a\nb</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n",
                "<arg_key>city</arg_key><arg_value></arg_value><arg_key>unit</arg_key><arg_value>C</arg_value>",
                "<arg_key>city</arg_key><arg_value>x</arg_value><arg_key>some</arg_key><arg_value>null</arg_value>",
            ],
            [
                "\n",
                "<arg_key>city</arg_key><arg_value>x</arg_value><arg_key>days</arg_key><arg_value>x</arg_value>",
                "<arg_key>city</arg_key><arg_value>x</arg_value><arg_key>unit</arg_key><arg_value>K</arg_value>",
                "<arg_key>city</arg_key><arg_value>x</arg_value><arg_key>city</arg_key><arg_value>x</arg_value>",
            ],
        ),
        (
            "minimax_xml",
            ['\n<parameter name="city">x</parameter>\n<parameter name="unit">1</parameter>\n'],
            [
                '<parameter name="city">x</parameter><parameter name="unit">2</parameter>',
                "<parameter=city>x</parameter>",
            ],
        ),
        (
            "deepseek_xml",
            [
                '<｜DSML｜parameter name="city" string="true">3</｜DSML｜parameter>\n'
                '<｜DSML｜parameter name="unit" string="true">C</｜DSML｜parameter>\n'
                '<｜DSML｜parameter name="some" string="false">null</｜DSML｜parameter>',
                '<｜DSML｜parameter name="city" string="true"></｜DSML｜parameter>'
                '<｜DSML｜parameter name="unit" string="false">1</｜DSML｜parameter>'
                '<｜DSML｜parameter name="some" string="true">null</｜DSML｜parameter>',
            ],
            [
                '<｜DSML｜parameter name="city" string="false">3</｜DSML｜parameter>',
                '<｜DSML｜parameter name="city" string="true">3</｜DSML｜parameter>'
                '<｜DSML｜parameter name="days" string="true">3</｜DSML｜parameter>',
                '<｜DSML｜parameter name="city" string="true">3</｜DSML｜parameter>'
                '<｜DSML｜parameter name="unit" string="true">1</｜DSML｜parameter>',
            ],
        ),
    ],
)
def test_arguments_in_other_styles(style: str, good: list[str], bad: list[str]) -> None:
    properties = {"city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"enum": ["C", 1]}}
    properties["some"] = {"type": ["string", "null"]}
    schema = {"type": "object", "properties": properties, "required": ["city"], "additionalProperties": False}
    content = {"type": "json_schema", "json_schema": schema, "style": style}
    wanted = made({"type": "tag", "begin": "<f>", "content": content, "end": "</f>"})
    assert [accepts(wanted, f"<f>{text}</f>") for text in good] == [True] * len(good)
    assert [accepts(wanted, f"<f>{text}</f>") for text in bad] == [False] * len(bad)


def test_arguments_of_a_python_call() -> None:
    properties: dict[str, Any] = {"a": {"type": "integer"}, "city": {"type": "string", "maxLength": 3}}
    properties |= {"ok": {"type": "boolean"}, "unit": {"enum": ["C", None]}, "x": {"type": ["number", "null"]}}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": ["city"]}
    schema["additionalProperties"] = True
    content = {"type": "json_schema", "json_schema": schema, "style": "pythonic"}
    wanted = made({"type": "tag", "begin": "f(", "content": content, "end": ")"})
    good = [
        'city="x"',
        'a=1, city="", ok=True, unit=None, x=1.5',
        'city="(a"',
        'city="a", unit="C", x=None, more={"b": 1}',
    ]
    assert [accepts(wanted, f"f({text})") for text in good] == [True] * len(good)
    bad = ["", "a=1", 'city="x", a=1', 'city="long"', 'city="x", ok=1', 'city="x",', ', city="x"', 'city="x", city="x"']
    assert [accepts(wanted, f"f({text})") for text in bad] == [False] * len(bad)
    for schema, says in (
        ({"properties": {"a b": {}}}, '"a b" .*Python call'),
        ({"type": "array"}, "Python call .*object"),
    ):
        with pytest.raises(InvalidRequestError, match=says):
            made({**content, "json_schema": schema})


@pytest.mark.parametrize(("style", "quote"), [("gemma4", '<|"|>'), ("functiongemma", "<escape>")])
def test_arguments_with_strings_between_delimiters(style: str, quote: str) -> None:
    tree = {"type": "object", "properties": {"of": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}
    properties: dict[str, Any] = {"city": {"type": "string"}, "n": {"type": "integer", "minimum": 1}}
    properties["unit"] = {"enum": ["C", 1, None]}
    properties["pair"] = {"type": "array", "items": {"type": ["string", "number"]}, "minItems": 1, "maxItems": 2}
    properties["tree"] = {"$ref": "#/$defs/tree"}
    properties["either"] = {"anyOf": [{"type": "boolean"}, {**tree, "required": ["of"], "additionalProperties": False}]}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": ["city"]}
    schema |= {"additionalProperties": True, "$defs": {"tree": {**tree, "additionalProperties": False}}}
    content = {"type": "json_schema", "json_schema": schema, "style": style}
    wanted = made({"type": "tag", "begin": "{", "content": content, "end": "}"})
    good = [
        'city:"Paris, \n}{"',
        'city:"",n:12,unit:"C",pair:["a",-2.5]',
        'city:"",unit:null,pair:["]"],tree:{of:[{},{of:[{of:[]}]}]},either:{of:[]}',
        'city:"",either:true,more:{a:[1,{b:"",c:null}],d:[]},other:"x"',
    ]
    bad = [
        *("", "n:1", "city:Paris", 'city:"",n:0', 'city:"",n:"1"', 'city:"",unit:"F"', 'city:"",unit:C', 'city:"",'),
        *(
            'city:"",pair:[]',
            'city:"",pair:[1,2,3]',
            'city:"",pair:[true]',
            'city:"",tree:{of:[1]}',
            'city:"",either:{}',
        ),
        *(
            'city:"",tree:{x:1}',
            'city:"",city:""',
            'city:"", n:1',
            'city:"",more:{a}',
            'city:"",more:[1,]',
            'city:"" "',
        ),
    ]
    for texts, allowed in ((good, True), (bad, False)):
        for text in texts:
            assert accepts(wanted, "{" + text.replace('"', quote) + "}") == allowed, text
    for part in (
        {"type": "string", "maxLength": 3},
        {"type": "object", "minProperties": 1},
        {"enum": [[1]]},
        {"enum": [f"a{quote}"]},
        {"type": ["string", "null"], "pattern": "a"},
    ):
        with pytest.raises(InvalidRequestError):
            made({**content, "json_schema": {"type": "object", "properties": {"a": part}}})


def test_after_reasoning() -> None:
    wanted = made(THINKING.constraint(JSON_3, opened=True))
    assert accepts(wanted, 'Well. <a> { </think{"a": 1}</think>\n\n{"a": 3}')
    assert accepts(wanted, '</think>{"a": 0}')
    assert not accepts(wanted, '{"a": 3}')
    assert not accepts(wanted, 'hm</think>{"b": 3}')
    assert not accepts(wanted, 'hm</think>so</think>{"a": 3}')


def test_markers_are_reached_by_their_own_tokens_and_by_others() -> None:
    for content in (JSON_A, JSON_3):
        constraint = demo().make(made(THINKING.constraint(content, opened=True)))
        marker = demo().bytes_of.index(b"</think>")
        assert marker in demo().allowed(constraint)
        assert demo().bytes_of.index(b"<") in demo().allowed(constraint)
        assert constraint.accept(marker)
        assert {demo().bytes_of[token_id][:1] for token_id in demo().allowed(constraint)} == {b"{", b"\n"}
