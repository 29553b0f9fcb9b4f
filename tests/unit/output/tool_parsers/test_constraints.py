"""What a model can write under a format's constraint, by llguidance itself, is read back by the format's parser."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import numpy.typing as npt
import pytest

from openai_bls.core.engine_types import Grammar
from openai_bls.output.detect import REASONINGS, TOOL_FORMATS, detect
from openai_bls.output.tool_parsers.formats import as_json_array
from tests.unit.output.parsing import Found, run
from tests.unit.output.structured import driving
from tests.unit.output.tool_parsers.chat_templates import written

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"$ref": "#/$defs/Unit"},
        "where": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
    "$defs": {"Unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "stop", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "stop-2", "parameters": None}},
]
SCHEMAS = {"get_weather": WEATHER, "stop": {"type": "object"}, "stop-2": {"type": "object"}}
VALID = {name: jsonschema.Draft202012Validator(schema) for name, schema in SCHEMAS.items()}
# What a walk at random would hardly ever come upon; a format's own markers are added.
LIKELY = ('"', '"}', "}", "]", "\n</parameter>", "</parameter>", "\n</function>", "</tool_call>", "[TOOL_CALLS]")
VALUE_ENDS = {
    "glm_xml": ["</arg_value>\n</tool_call>", "</arg_value>"],
    "hy_xml": ["</arg_value:opensource>\n</tool_call:opensource>\n", "</arg_value:opensource>"],
    "minicpm_xml": ["</param></function>", "</param>"],
    "minimax_xml": ["</parameter>\n</invoke>"],
    "deepseek_xml": ["</｜DSML｜parameter>\n</｜DSML｜invoke>", "</｜DSML｜parameter>"],
    "kimi_k3": ["<|close|>argument<|sep|>", "<|close|>argument<|sep|><|close|>call<|sep|>"],
    "minimax_m3": ["]<]minimax[>[</city>", "]<]minimax[>[</unit>", "]<]minimax[>[</invoke>\n"] * 2,
    "gemma4": ['<|"|>', '<|"|>,'],
    "functiongemma": ["<escape>", "<escape>}", "<escape>,unit:<escape>celsius<escape>}"] * 3,
}
MAX_STEPS = 1000
# Bytes from which on a text had better come to its end.
LONG = 60
CLOSING = (b'"', b"}", b"]", b"<", b"/", b"\n", b";", b"[")

FORMS = {**TOOL_FORMATS, "json_array": as_json_array(TOOL_FORMATS["hermes"])}
every_format = pytest.mark.parametrize("form", FORMS)
in_free_text = pytest.mark.parametrize("form", TOOL_FORMATS)


def accepts(constraint: dict[str, Any], text: str) -> bool:
    """Whether the constraint allows the text as a whole."""
    return driving.accepts(driving.made(constraint), text)


def walk(
    grammar: Grammar, likely: Sequence[Sequence[int]], seed: int, vocabulary: driving.Vocabulary | None = None
) -> str | None:
    """A text at random that the grammar allows; None if it has not come to an end in time."""
    choose = random.Random(seed)
    vocabulary = vocabulary or driving.tiny()
    matcher = vocabulary.make(grammar)
    raw = b""
    wanted: list[int] = []
    for _ in range(MAX_STEPS):
        allowed = vocabulary.allowed(matcher)
        if not wanted and choose.random() < 0.3:
            wanted = [*choose.choice(likely)]
        if not wanted or wanted[0] not in allowed:
            if vocabulary.eos in allowed:
                if len(allowed) == 1 or choose.random() < 0.1:
                    return raw.decode(errors="replace")
                allowed = allowed[allowed != vocabulary.eos]
            readable = allowed[vocabulary.readable[allowed]]
            closing = allowed[closes(vocabulary)[allowed]]
            if closing.size and len(raw) > LONG and choose.random() < 0.8:
                readable = closing
            wanted = [int(choose.choice(readable if readable.size and choose.random() < 0.9 else allowed))]
        token_id = wanted.pop(0)
        assert matcher.accept(token_id)
        raw += vocabulary.bytes_of[token_id]
        if matcher.ended:
            return raw.decode(errors="replace")
    return None


@cache
def closes(vocabulary: driving.Vocabulary) -> npt.NDArray[np.bool_]:
    """Which tokens lead to the end of a text."""
    return np.array([raw in CLOSING for raw in vocabulary.bytes_of])


def check(found: Found) -> None:
    for _, name, arguments in found:
        VALID[name].validate(json.loads(arguments))


def samples(form: str, count: int, **choice: Any) -> list[Found]:
    """What the parser finds in texts at random."""
    tool_format = FORMS[form]
    constraint = tool_format.constraint(TOOLS, **choice)
    begins = [tool_format.begin.replace("{name}", name) for name in SCHEMAS]
    likely = [tool_format.trigger, tool_format.open, tool_format.end, tool_format.close, *begins]
    likely += [tool_format.separator + begin for begin in begins]
    if not tool_format.separator:
        likely += [tool_format.end + begin for begin in begins]
    if tool_format.only_at_start:
        likely += [tool_format.open + begin for begin in begins] * 3
    likely += VALUE_ENDS.get(tool_format.style, ())
    parts = [driving.spelled(part) for part in (*LIKELY, *filter(None, likely))]
    texts = [walk(driving.made(constraint), parts, seed) for seed in range(count)]
    ended = [text for text in texts if text is not None]
    assert len(ended) >= count // 4
    return [run(tool_format.parsers(TOOLS)(), [text]) for text in ended]


@every_format
def test_required_gives_calls_and_nothing_else(form: str) -> None:
    found = samples(form, 20, at_least_one=True, name=None, parallel=True)
    assert all(item[0] == "call" for one in found for item in one)
    assert all(found)
    assert max(map(len, found)) > 1
    assert len({item[1] for one in found for item in one}) > 1
    for one in found:
        check(one)


@every_format
def test_one_call_where_there_may_not_be_more(form: str) -> None:
    for one in samples(form, 5, at_least_one=True, name=None, parallel=False):
        assert [item[0] for item in one] == ["call"]
        check(one)
    for one in samples(form, 5, at_least_one=True, name="get_weather", parallel=True):
        assert [item[:2] for item in one] == [("call", "get_weather")]
        check(one)


@in_free_text
@pytest.mark.parametrize("parallel", [True, False])
def test_in_free_text_calls_are_checked(form: str, parallel: bool) -> None:
    found = samples(form, 20, at_least_one=False, name=None, parallel=parallel)
    calls = [[item for item in one if item[0] == "call"] for one in found]
    for one in calls:
        check(one)
        assert parallel or len(one) <= 1
    assert any(calls)
    assert any(item[0] == "content" for one in found for item in one)


@in_free_text
@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hello {you}",
        "1. [a] <b>\n\n",
        "你好 👍",
        "<b>",
        '{"city": 1}',
        '{\n "names": 1}',
        "[1]",
        '\n\n{"type": "x"',
        "<|p|>",
    ],
)
def test_free_text_is_free(form: str, text: str) -> None:
    constraint = FORMS[form].constraint(TOOLS, at_least_one=False, name=None, parallel=True)
    assert accepts(constraint, text)
    assert not accepts(FORMS[form].constraint(TOOLS, at_least_one=True, name=None, parallel=True), text)


@pytest.mark.parametrize(
    "call",
    [
        '{"name": "f"',
        ' {\n "name"',
        '{ "type": "function"',
        '{"type":"function"',
        "<|python_tag|>",
        "x <|python_tag|>",
        'x {"name": "stop"',
    ],
)
def test_calls_of_llama_are_written_in_one_way(call: str) -> None:
    constraint = TOOL_FORMATS["llama3_json"].constraint(TOOLS, at_least_one=False, name=None, parallel=True)
    assert not accepts(constraint, f'{call}, "name": "stop", "parameters": {{}}}}')


# Of no template
AN_ARRAY = '[{"name": "stop", "parameters": {}}, {"name": "stop", "parameters": {"a": 1}}]'


@every_format
def test_what_templates_write_is_allowed_and_read(form: str) -> None:
    tool_format = FORMS[form]
    text = written(form, [("stop", {}), ("stop", {"a": 1})]) if form in TOOL_FORMATS else AN_ARRAY
    found = run(tool_format.parsers(TOOLS)(), [text])
    assert [(item[1], json.loads(item[2])) for item in found] == [("stop", {}), ("stop", {"a": 1})]
    if form == "minimax_m3":
        # Names that no schema declares cannot be held in its tags.
        text = text.replace("]<]minimax[>[<a>1]<]minimax[>[</a>", "")
    for at_least_one in (True, False) if form in TOOL_FORMATS else (True,):
        assert accepts(tool_format.constraint(TOOLS, at_least_one=at_least_one, name=None, parallel=True), text)
    assert not accepts(tool_format.constraint(TOOLS, at_least_one=True, name=None, parallel=False), text)
    assert not accepts(tool_format.constraint(TOOLS, at_least_one=True, name="get_weather", parallel=True), text)


@pytest.mark.parametrize("form", ["qwen3_coder", "seed_oss"])
def test_what_ends_a_value_whose_tag_is_missing_is_no_text_of_it(form: str) -> None:
    tool_format = TOOL_FORMATS[form]
    constraint = tool_format.constraint(TOOLS, at_least_one=True, name="get_weather", parallel=False)
    begin = tool_format.begin.replace("{name}", "get_weather")
    call = f"{begin}\n<parameter=city>\n%s\n</parameter>\n<parameter=unit>\nfahrenheit\n</parameter>\n{tool_format.end}"
    assert accepts(constraint, call % "a <parameter=b></function>")
    assert not accepts(constraint, call % "a\n<parameter=unit>\ncelsius")
    assert not accepts(constraint, call % "a\n</function>")


# Ways to begin a call that parsers read, but templates do not write.
@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", "a <tool_call>"),
        ("mistral", '[TOOL_CALLS][{"name"'),
        ("mistral_tekken", '[TOOL_CALLS] [{"name"'),
        ("mistral", "[TOOL_CALLS]stop"),
        ("mistral_v13", "[TOOL_CALLS]stop[CALL_ID]"),
        ("deepseek_v3", "<｜tool▁call▁begin｜>"),
        ("deepseek_v31", "a <｜tool▁call▁begin｜>stop"),
        ("deepseek_v31", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>stop"),
        ("qwen3_coder", "a <function=stop>"),
        ("seed_oss", "<function=stop>"),
        ("seed_oss", "<seed:tool_call><function=stop>"),
        ("glm", "a <tool_call>other"),
        ("kimi_k2", "a <|tool_call_begin|>functions.stop:0"),
        ("kimi_k2", "a <|tool_call_section_begin|>"),
        ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>stop:0"),
        ("hunyuan_a13b", '<tool_calls>{"name"'),
        ("granite", "a <tool_call>"),
        ("granite", "<|tool_call|> ["),
        ("minimax_m1", "<tool_calls>["),
        ("minimax_m2", "<minimax:tool_call><invoke"),
        ("deepseek_v32", "a <｜DSML｜function_calls>x"),
        ("deepseek_v4", "a <｜DSML｜tool_calls>x"),
        ("gemma4", "<|tool_call> call:stop"),
        ("hy_v3", "a <tool_call:opensource>"),
        ("hy_v3_preview", "<tool_calls><tool_call>"),
        ("minicpm5", 'a <function name="other"'),
        ("functiongemma", "<start_function_call>call:other"),
        ("lfm2", "a <|tool_call_start|>[other("),
        ("lfm2", "<|tool_call_start|> [stop()"),
        ("phi4_mini_json", 'functools[ {"name"'),
        ("nemotron_json", '<TOOLCALL>{"name"'),
        ("cohere_command", "<|START_ACTION|>[{"),
        ("internlm", "a <|action_start|> <|plugin|>"),
        ("granite-20b-fc", '<function_call>{"name"'),
        ("apertus", '<|tools_prefix|>[{"other"'),
        ("xlam", '[ {"name"'),
        ("xlam", '```json\n[{"name"'),
        ("xlam", 'a\n```json\n[{"name"'),
        ("xlam", "a <tool_call>["),
        ("gigachat3", "a function call<|role_sep|>"),
        ("gigachat3", "<|function_call|>"),
        ("gigachat31", "function call<|role_sep|>"),
        ("gigachat31", "<|function_call|> {"),
        ("solar_open", "a <|tool_call:begin|>"),
        ("solar_open", "<|tool_calls|> <|tool_call:begin|>"),
        ("functionary_v31", "a <function=other>"),
        ("kimi_k3", "<|open|>tools<|sep|>"),
        ("minimax_m3", "a ]<]minimax[>[<tool_call>]<]minimax[>[<invoke"),
        ("pythonic", "[stop(x"),
        ("pythonic", " [ get_weather ("),
        ("pythonic", "<|python_start|>[stop("),
    ],
)
def test_no_call_goes_unchecked(form: str, text: str) -> None:
    constraint = FORMS[form].constraint(TOOLS, at_least_one=False, name=None, parallel=True)
    # The trigger itself is no text, although what it begins may still come.
    assert not accepts(constraint, text)


@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize("reasoning", REASONINGS)
def test_only_the_answer_after_reasoning_is_constrained(reasoning: str, opened: bool) -> None:
    kind = REASONINGS[reasoning]
    formats = detect(None, "hermes", reasoning)
    assert formats.tool_format is not None
    answer = formats.tool_format.constraint(TOOLS, at_least_one=True, name="stop", parallel=False)
    constraint = kind.constraint(answer, opened=opened, excludes=formats.ending_calls(formats.tool_format))
    call = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'
    begin = "" if opened else kind.begin
    thought = f"{begin}\nWell, <b>\n{kind.end}\n\n"
    assert accepts(constraint, thought + call)
    assert accepts(constraint, call) is not opened
    assert not accepts(constraint, thought)
    assert not accepts(constraint, thought + "x" + call)
    # A call would end the reasoning unchecked.
    assert not accepts(constraint, f"{begin}Well, {call}{kind.end}{call}")
    for text in (thought + call, *(f"{thought}{head}\n{call}" for head in kind.heads)):
        assert accepts(constraint, text)
        parser = formats.parsers(tools=TOOLS, reasoning_open=opened)()
        assert parser is not None
        assert run(parser, [text]) == [("reasoning", "Well, <b>"), ("call", "stop", "{}")]


@every_format
def test_no_such_tool(form: str) -> None:
    with pytest.raises(ValueError, match="'other'"):
        FORMS[form].constraint(TOOLS, at_least_one=True, name="other", parallel=True)
    with pytest.raises(ValueError, match="no tools"):
        FORMS[form].constraint([], at_least_one=True, name=None, parallel=True)


@pytest.mark.parametrize("parameters", [{}, {"parameters": None}, {"parameters": {}}])
def test_a_function_without_parameters_takes_none(parameters: dict[str, Any]) -> None:
    tools = [{"type": "function", "function": {"name": "ping", **parameters}}]
    constraint = TOOL_FORMATS["hermes"].constraint(tools, at_least_one=True, name=None, parallel=False)
    call = '<tool_call>\n{"name": "ping", "arguments": %s}\n</tool_call>'
    assert accepts(constraint, call % "{}")
    assert not accepts(constraint, call % '{"a": 1}')
