"""What is found in the texts of every form of tool calls, however they are cut."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.output.events import ContentDelta, Event, ToolCallArguments, ToolCallStart
from openai_bls.output.tool_parsers.families.json_calls import granite, kimi_k2
from openai_bls.output.tool_parsers.families.literals.gemma import FUNCTION_GEMMA, GEMMA4, GemmaTexts
from openai_bls.output.tool_parsers.families.tags.deepseek import CALLS_BEGIN, CALLS_END
from openai_bls.output.tool_parsers.families.tags.qwen3_coder import xml_calls
from openai_bls.output.tool_parsers.kinds import ToolSchema
from openai_bls.output.tool_parsers.parser import ToolCallParser, new_call_id
from tests.unit.output.parsing import (
    check_any_cut,
    check_every_split,
    check_linear_time,
    cut,
    cut_lengths,
    json_values,
    moderate,
    run,
)
from tests.unit.output.tool_parsers.texts import FORMS, gemma, hermes, qwen3_coder
from tests.unit.output.tool_parsers.texts.kimi_and_lists import F_JSON, G_1, F, call, section
from tests.unit.output.tool_parsers.texts.llama_mistral_deepseek import v3, v31
from tests.unit.output.tool_parsers.texts.markers_and_json import action, plugin
from tests.unit.output.tool_parsers.texts.xml_families import deepseek, glm_call, minimax, plain


def new(form: str) -> ToolCallParser:
    return ToolCallParser(FORMS[form].syntax)


@pytest.mark.parametrize(("form", "text"), [(name, text) for name, form in FORMS.items() for text in form.examples])
def test_examples_however_they_are_cut(form: str, text: str) -> None:
    check_every_split(lambda: new(form), text, FORMS[form].examples[text])


@pytest.mark.parametrize("form", FORMS)
@moderate
@given(data=st.data(), lengths=cut_lengths)
def test_any_cut_equals_the_whole(form: str, data: st.DataObject, lengths: list[int]) -> None:
    parts = st.sampled_from([*FORMS[form].parts, *FORMS[form].examples])
    text = data.draw(st.lists(parts, max_size=8).map("".join))
    check_any_cut(lambda: new(form), text, lengths, FORMS[form].syntax.dropped)


@pytest.mark.parametrize(
    ("form", "begin", "repeated"), [(name, *texts) for name, form in FORMS.items() for texts in form.slow]
)
def test_long_held_texts_take_linear_time(form: str, begin: str, repeated: str) -> None:
    check_linear_time(lambda: new(form), begin, repeated)


CALLS_ALONE = [
    (name, text)
    for name, form in FORMS.items()
    for text, found in form.examples.items()
    if found and all(kind == "call" for kind, *_ in found)
]


@pytest.mark.parametrize(("form", "text"), CALLS_ALONE)
def test_a_call_that_is_cut_anywhere_leaves_no_markup(form: str, text: str) -> None:
    whole = FORMS[form].examples[text]
    for end in range(len(text) + 1):
        found = run(new(form), [text[:end]], cut_off=True)
        # Character by character it is the same.
        assert end % 3 or run(new(form), text[:end], cut_off=True) == found
        assert [one for one in found if one[0] == "content" and one[1].strip()] == []
        calls = [one for one in found if one[0] == "call"]
        assert [name for _, name, _ in calls] == [name for _, name, _ in whole[: len(calls)]]


def test_there_are_calls_to_cut_in_every_form() -> None:
    assert {form for form, _ in CALLS_ALONE} == FORMS.keys()


@pytest.mark.parametrize(
    ("form", "text", "kept"),
    [
        ("hermes", "Let me see <tool_ca", "Let me see "),
        ("hermes", 'So <tool_call>\n{"na', "So "),
        ("hermes", "So <tool_call> no call, but text", "So <tool_call> no call, but text"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}} extra</tool', None),
        ("llama", '{"name": "weath', None),
        ("llama", '{"age": 3', '{"age": 3'),
        ("pythonic", "[weather(ci", None),
        ("pythonic", "[1] is", "[1] is"),
        ("glm", "a <tool_call>weather\n<arg_", "a "),
        ("hermes", " \n", " \n"),
    ],
)
def test_what_is_left_of_a_text_that_is_cut(form: str, text: str, kept: str | None) -> None:
    found = [one[1] for one in run(new(form), [text], cut_off=True) if one[0] == "content"]
    assert found == ([] if kept is None else [kept])
    # One that ends by itself keeps all.
    if not any(one[0] == "call" for one in run(new(form), [text])):
        assert run(new(form), [text]) == [("content", text)]


# --- calls as templates write them ---


def listed(calls: list[str]) -> str:
    return ", ".join(f'{{"name": "f", "arguments": {call}}}' for call in calls)


WRITE: dict[str, Callable[[list[str]], str]] = {
    "hermes": lambda calls: "\n".join(hermes.block(f'{{"name": "f", "arguments": {call}}}') for call in calls),
    "hermes_string": lambda calls: "\n".join(
        hermes.block(f'{{"name": "f", "arguments": {json.dumps(call)}}}') for call in calls
    ),
    "llama": lambda calls: "; ".join(f'{{"name": "f", "parameters": {call}}}' for call in calls),
    "mistral": lambda calls: (
        "[TOOL_CALLS] [" + ", ".join(f'{{"name": "f", "arguments": {call}}}' for call in calls) + "]"
    ),
    "mistral_v11": lambda calls: "".join(f"[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{call}" for call in calls),
    "phi4": lambda calls: "functools[" + listed(calls) + "]",
    "nemotron": lambda calls: f"<TOOLCALL>[{listed(calls)}]</TOOLCALL>",
    "cohere": lambda calls: action(*(f'"tool_name": "f", "parameters": {call}' for call in calls)),
    "internlm2": lambda calls: "".join(plugin(f'{{"name": "f", "arguments": {call}}}') for call in calls),
    "granite20b": lambda calls: "".join(f'<function_call> {{"name": "f", "arguments": {call}}}' for call in calls),
    "apertus": lambda calls: (
        "<|tools_prefix|>[" + ", ".join(f'{{"f": {call}}}' for call in calls) + "]<|tools_suffix|>"
    ),
    "deepseek": lambda calls: CALLS_BEGIN + "\n".join(v3("f", call) for call in calls) + CALLS_END,
    "deepseek_v31": lambda calls: CALLS_BEGIN + "".join(v31("f", call) for call in calls) + CALLS_END,
}


@pytest.mark.parametrize("written_by", WRITE)
@moderate
@given(
    arguments=st.lists(st.dictionaries(st.text(max_size=4), json_values, max_size=3), min_size=1, max_size=3),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 2]),
    end=st.integers(0, 400),
    lengths=cut_lengths,
)
def test_valid_calls_come_back_whole_and_cut_ones_as_far_as_they_go(
    written_by: str, arguments: list[dict[str, Any]], ascii_only: bool, indent: int | None, end: int, lengths: list[int]
) -> None:
    form = written_by.split("_", maxsplit=1)[0]
    written = [json.dumps(a, ensure_ascii=ascii_only, indent=indent) for a in arguments]
    text = WRITE[written_by](written)
    assert run(new(form), cut(text, lengths)) == [("call", "f", call) for call in written]
    calls = [found for found in run(new(form), cut(text[:end], lengths)) if found[0] == "call"]
    assert len(calls) <= len(written)
    for place, (_, name, got) in enumerate(calls):
        assert name == "f"
        assert written[place].startswith(got)
        assert got == written[place] or place == len(calls) - 1


@moderate
@given(values=st.dictionaries(st.sampled_from(["a", "b_1", "中"]), json_values), lengths=cut_lengths)
@pytest.mark.parametrize("write", [repr, json.dumps])
def test_values_written_as_python_come_back(write: Any, values: dict[str, Any], lengths: list[int]) -> None:
    text = f"[weather({', '.join(f'{key}={write(value)}' for key, value in values.items())})]"
    [(_, name, arguments)] = run(new("pythonic"), cut(text, lengths))
    assert name == "weather"
    assert json.loads(arguments) == values


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
    text = qwen3_coder.block("weather", city=city, days=str(days), metric=str(metric), where=written)
    [(_, name, arguments)] = run(new("qwen3_coder"), cut(text, lengths))
    assert name == "weather"
    assert json.loads(arguments) == {"city": city, "days": days, "metric": metric, "where": where}


@moderate
@given(
    city=st.text(max_size=20).filter(lambda text: "</" not in text),
    days=st.integers(),
    where=st.dictionaries(st.text(max_size=4), json_values, max_size=3),
    lengths=cut_lengths,
)
def test_values_written_within_tags_come_back(city: str, days: int, where: dict[str, Any], lengths: list[int]) -> None:
    arguments = {"city": city, "days": days, "where": where}
    if "</" in plain(where):
        return
    call = ("weather", arguments)
    for form, text in (("glm", glm_call(*call)), ("minimax", minimax(call)), ("deepseek_v32", deepseek(call))):
        [(_, name, found)] = run(new(form), cut(text, lengths))
        assert name == "weather"
        assert json.loads(found) == arguments


gemma_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="<"), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "name"]), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(("form", "texts"), [("gemma4", GEMMA4), ("functiongemma", FUNCTION_GEMMA)])
@moderate
@given(
    calls=st.lists(
        st.dictionaries(st.sampled_from(["x", "y", "city"]), gemma_values, max_size=3), min_size=1, max_size=3
    ),
    lengths=cut_lengths,
)
def test_values_written_between_delimiters_come_back(
    form: str, texts: GemmaTexts, calls: list[dict[str, Any]], lengths: list[int]
) -> None:
    for arguments in calls:
        arguments["city"] = str(arguments.get("city", ""))
    text = "".join(gemma.call(texts, "weather", arguments) for arguments in calls)
    found = run(new(form), cut(text, lengths))
    assert [(name, json.loads(arguments)) for _, name, arguments in found] == [("weather", one) for one in calls]


# --- streams ---

STREAMS: dict[str, list[tuple[str, list[Event]]]] = {
    "hermes": [
        ("Let me ", [ContentDelta("Let me ")]),
        ("see <", [ContentDelta("see ")]),
        ("b> ", [ContentDelta("<b> ")]),
        ("<tool_call>", []),
        ('\n{"name": "f"', []),
        (', "arguments": {', [ToolCallStart(0, "call_x", "f"), ToolCallArguments(0, "{")]),
        ('"a": "b', [ToolCallArguments(0, '"a": "b')]),
        ("\\", [ToolCallArguments(0, "\\")]),
        ('"c"}', [ToolCallArguments(0, '"c"}')]),
        ("}\n</tool", []),
        ("_call>\n", []),
        ("done", [ContentDelta("\ndone")]),
    ],
    "llama": [('{"a', []), ('ge": 3', [ContentDelta('{"age": 3')]), (" [", [ContentDelta(" [")])],
    "pythonic": [
        ("[weather(city", []),
        ("='New ", [ToolCallStart(0, "call_x", "weather"), ToolCallArguments(0, '{"city": "New ')]),
        ("York\\", [ToolCallArguments(0, "York")]),
        ("'s', days=1", [ToolCallArguments(0, '\'s", "days": ')]),
        ("2)", [ToolCallArguments(0, "12}")]),
        ("]", []),
    ],
    "qwen3_coder": [
        ("so <tool_call>\n<function=weather>\n", [ContentDelta("so ")]),
        ("<parameter=", [ToolCallStart(0, "call_x", "weather"), ToolCallArguments(0, "{")]),
        ("city>\nNew ", [ToolCallArguments(0, '"city": "New ')]),
        ("York\n</", [ToolCallArguments(0, "York")]),
        ("b>\n", [ToolCallArguments(0, "\\n</b>")]),
        ("</parameter><parameter=days>1", [ToolCallArguments(0, '", "days": ')]),
        ("2</parameter>", [ToolCallArguments(0, "12")]),
        ("</function>", [ToolCallArguments(0, "}")]),
        ("\n</tool_call>", []),
    ],
    "glm": [
        ("so <tool_call>weather\n<arg", [ContentDelta("so ")]),
        ("_key>", [ToolCallStart(0, "call_x", "weather"), ToolCallArguments(0, "{")]),
        ("city</arg_key>\n<arg_value>New ", [ToolCallArguments(0, '"city": "New ')]),
        ("York</", [ToolCallArguments(0, "York")]),
        ("arg_value>\n</tool_call>", [ToolCallArguments(0, '"}')]),
    ],
}


@pytest.mark.parametrize("form", STREAMS)
def test_streams_without_delay(form: str) -> None:
    parser = ToolCallParser(FORMS[form].syntax, lambda: "call_x")
    for text, events in STREAMS[form]:
        assert parser.push(text) == events
    assert parser.finish() == []


# --- ids ---


def test_call_ids() -> None:
    ids = {new_call_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch(r"call_[A-Za-z0-9_-]{24}", call_id) for call_id in ids)


def test_kimis_calls_keep_their_ids() -> None:
    ids = iter(["call_x", "call_y"])
    parser = ToolCallParser(kimi_k2.SYNTAX, lambda: next(ids))
    events = parser.push(section(call("functions.f:4", "{}"), G_1, call("functions.f:4", "{}")))
    starts = [event for event in events if isinstance(event, ToolCallStart)]
    assert [start.id for start in starts] == ["functions.f:4", "functions.g:1", "call_x"]
    assert parser.push("<|tool_call_begin|>functions.f:5<|tool_call_argument_begin|>") == []
    assert parser.push('{"a"') == [ToolCallStart(3, "functions.f:5", "f"), ToolCallArguments(3, '{"a"')]


def test_other_formats_calls_have_new_ids() -> None:
    assert run(ToolCallParser(granite.SYNTAX), [f"<|tool_call|>[{F_JSON}, {F_JSON}]"]) == [F, F]


def test_seed_oss_has_another_outer_tag() -> None:
    text = qwen3_coder.PARIS.replace("tool_call", "seed:tool_call")
    assert run(ToolCallParser(xml_calls({"weather": ToolSchema(qwen3_coder.SCHEMA)}, "seed:tool_call")), [text]) == [
        qwen3_coder.PARIS_CALL
    ]
