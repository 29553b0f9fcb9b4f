from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.output.events import ContentDelta
from openai_bls.output.tool_parsers.families import deepseek, mistral
from openai_bls.output.tool_parsers.families.deepseek import CALL_BEGIN, CALL_END, CALLS_BEGIN, CALLS_END, SEPARATOR
from openai_bls.output.tool_parsers.families.llama3_json import llama3_json
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

SYNTAXES = {"llama": llama3_json(["f", "weather"]), "mistral": mistral.SYNTAX, "deepseek": deepseek.SYNTAX}

# Unicode, escapes, nested braces, braces and markers in strings
HARD = '{"a": {"b": [{}, "}]{[<"]}, "c": "\\u4f60\\n\\"</tool_call>[TOOL_CALLS]<｜tool▁call▁end｜>\\\\", '
HARD += '"你": "👨‍👩‍👧 \0"}'
F = ("call", "f", "{}")
WEATHER = ("call", "weather", HARD)


def v3(name: str, arguments: str) -> str:
    return f"{CALL_BEGIN}function{SEPARATOR}{name}\n```json\n{arguments}\n```{CALL_END}"


def v31(name: str, arguments: str) -> str:
    return f"{CALL_BEGIN}{name}{SEPARATOR}{arguments}{CALL_END}"


LLAMA: dict[str, Found] = {
    "": [],
    "Hello {you}, 你好 <b>": [content("Hello {you}, 你好 <b>")],
    " \n": [content(" \n")],
    f'{{"name": "weather", "parameters": {HARD}}}': [WEATHER],
    f'\n {{ "type" : "function", "name": "weather", "id": "x", "parameters": {HARD}}} \n': [WEATHER],
    '{"name": "f", "arguments": {}}': [F],
    '{"name": "f", "parameters": null}': [F],
    '{"name": "f", "parameters": "{\\"a\\": 1}"}': [("call", "f", '{"a": 1}')],
    '<|python_tag|>{"name": "f", "parameters": {}}': [F],
    '{"name": "f", "parameters": {}}; {"name": "f", "parameters": {}};\n{"name": "f", "parameters": {}}': [F, F, F],
    '{"name": "f", "parameters": {}}{"name": "f", "parameters": {}}': [F, F],
    '{"name": "f", "parameters": {}}\n<|python_tag|>{"name": "f", "parameters": {}}': [F, F],
    '{"name": "f", "parameters": {}} done': [F, content(" done")],
    '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}': [
        F,
        content('; {"name": "g", "parameters": {}}'),
    ],
    'I look.\n<|python_tag|>{"name": "f", "parameters": {}}': [content("I look.\n"), F],
    # JSON that is no call
    '{"name": "g", "parameters": {}}': [content('{"name": "g", "parameters": {}}')],
    '{"parameters": {}, "name": "g"}': [content('{"parameters": {}, "name": "g"}')],
    '{"parameters": {}, "name": "f"}': [content('{"parameters": {}, "name": "f"}')],
    '{"type": "object", "name": "f", "parameters": {}}': [content('{"type": "object", "name": "f", "parameters": {}}')],
    '{"name": "f"}': [content('{"name": "f"}')],
    '{"name": "f", "age": 3, "parameters": {}}': [content('{"name": "f", "age": 3, "parameters": {}}')],
    ' {"city": "Paris", "name": "f"}': [content(' {"city": "Paris", "name": "f"}')],
    "{": [content("{")],
    "{}": [content("{}")],
    "[1, 2]": [content("[1, 2]")],
    "<|python_tag|>": [content("<|python_tag|>")],
    '<|python_tag|>brave_search.call(query="x")': [content('<|python_tag|>brave_search.call(query="x")')],
    '<|python_tag|><|python_tag|>{"name": "f", "parameters": {}}': [content("<|python_tag|>"), F],
    'text {"name": "f", "parameters": {}}': [content('text {"name": "f", "parameters": {}}')],
    # Cut off
    '{"name": "f", "param': [content('{"name": "f", "param')],
    '{"name": "f", "parameters": {"a": "b': [("call", "f", '{"a": "b')],
    '{"name": "f", "parameters": {}}; ': [F],
    '{"name": "f", "parameters": {}}; <|pyth': [F],
    '{"name": "f", "parameters": {}}; {"na': [F, content('; {"na')],
}

MISTRALS: dict[str, Found] = {
    "": [],
    "a [b] [TOOL [": [content("a [b] [TOOL [")],
    f'[TOOL_CALLS] [{{"name": "weather", "arguments": {HARD}}}]': [WEATHER],
    f'[TOOL_CALLS][{{"name": "weather", "arguments": {HARD}, "id": "abcdefghi"}}]': [WEATHER],
    '[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "f", "arguments": {}},\n{"name": "f"}]': [F, F, F],
    '[TOOL_CALLS]{"name": "f", "arguments": {}}': [F],
    'Let me see.[TOOL_CALLS] [ {"name": "f", "arguments": {}} ] done': [content("Let me see."), F, content(" done")],
    f"[TOOL_CALLS]weather[ARGS]{HARD}": [WEATHER],
    f"[TOOL_CALLS]weather[CALL_ID]Ab3defghi[ARGS]{HARD}[TOOL_CALLS]f[CALL_ID]bbbbbbbbb[ARGS]{{}}": [WEATHER, F],
    "text\n[TOOL_CALLS]f{}[TOOL_CALLS]f {}\n": [content("text\n"), F, F],
    "[TOOL_CALLS] f[ARGS] {}": [F],
    # No calls
    "[TOOL_CALLS]": [content("[TOOL_CALLS]")],
    "[TOOL_CALLS] []": [content("[TOOL_CALLS] []")],
    "[TOOL_CALLS] [1]": [content("[TOOL_CALLS] [1]")],
    "[TOOL_CALLS]not a call": [content("[TOOL_CALLS]not a call")],
    "[TOOL_CALLS]{}": [content("[TOOL_CALLS]{}")],
    "[TOOL_CALLS]f[ARGS]12": [content("[TOOL_CALLS]f[ARGS]12")],
    "[TOOL_CALLS]f[ARG]{}": [content("[TOOL_CALLS]f[ARG]{}")],
    "[TOOL_CALLS]f[CALL_ID]a b[ARGS]{}": [content("[TOOL_CALLS]f[CALL_ID]a b[ARGS]{}")],
    "[TOOL_CALLS][ARGS]{}": [content("[TOOL_CALLS][ARGS]{}")],
    "[TOOL_CALLS][TOOL_CALLS]f{}": [content("[TOOL_CALLS]"), F],
    "[TOOL_CALLS]g[TOOL_CALLS]f{}": [content("[TOOL_CALLS]g"), F],
    "[TOOL_CALLS]g[CALL_ID]1[TOOL_CALLS]f{}": [content("[TOOL_CALLS]g[CALL_ID]1"), F],
    '[TOOL_CALLS] [{"name": "f", "arguments": {}} and': [F, content(" and")],
    '[TOOL_CALLS] [{"name": "f", "arguments": {}}, x': [F, content(", x")],
    # Cut off
    "[TOOL_CALLS]f[CALL_ID]abc": [content("[TOOL_CALLS]f[CALL_ID]abc")],
    '[TOOL_CALLS]f[ARGS]{"a": [': [("call", "f", '{"a": [')],
    '[TOOL_CALLS] [{"name": "f", "arguments": {}}, ': [F],
    '[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name"': [F, content(', {"name"')],
}

DEEPSEEKS: dict[str, Found] = {
    "": [],
    "a < b <｜tool▁ca": [content("a < b <｜tool▁ca")],
    CALLS_BEGIN + v3("weather", HARD) + CALLS_END: [WEATHER],
    CALLS_BEGIN + v31("weather", HARD) + CALLS_END: [WEATHER],
    f"I look.\n\n{CALLS_BEGIN}{v3('f', '{}')}\n{v3('f', '{}')}{CALLS_END}": [content("I look.\n\n"), F, F],
    f"{CALLS_BEGIN}{v31('f', '{}')}{v31('f', '{}')}{CALLS_END} done": [F, F, content(" done")],
    CALLS_BEGIN + "\n" + v3("f", "{}") + "\n" + CALLS_END + "\n": [F],
    v3("f", "{}"): [F],
    v31("f", "{}") + " and " + v31("f", "{}"): [F, content(" and "), F],
    f"{CALL_BEGIN}function{SEPARATOR}f\n{{}}{CALL_END}": [F],
    f"{CALL_BEGIN}function{SEPARATOR}f```json\n{{}}```{CALL_END}": [F],
    f"{CALLS_BEGIN}{CALL_BEGIN} f {SEPARATOR} {{}} {CALLS_END}": [F],
    # No calls
    CALLS_BEGIN: [content(CALLS_BEGIN)],
    CALLS_END: [content(CALLS_END)],
    f"text{CALLS_END}": [content(f"text{CALLS_END}")],
    f"{CALLS_BEGIN}{CALLS_END}": [content(f"{CALLS_BEGIN}{CALLS_END}")],
    f"{CALL_BEGIN}f{CALL_END}": [content(f"{CALL_BEGIN}f{CALL_END}")],
    f"{CALL_BEGIN}f{SEPARATOR}12{CALL_END}": [content(f"{CALL_BEGIN}f{SEPARATOR}12{CALL_END}")],
    f"{CALL_BEGIN}{SEPARATOR}{{}}{CALL_END}": [content(f"{CALL_BEGIN}{SEPARATOR}{{}}{CALL_END}")],
    f"{CALL_BEGIN}function{SEPARATOR}f\n```json\nx": [content(f"{CALL_BEGIN}function{SEPARATOR}f\n```json\nx")],
    f"{CALLS_BEGIN}{CALLS_BEGIN}{v31('f', '{}')}": [content(CALLS_BEGIN), F],
    f"{CALL_BEGIN}g{v31('f', '{}')}": [content(f"{CALL_BEGIN}g"), F],
    # Too much, or no end
    f"{CALL_BEGIN}f{SEPARATOR}{{}}}}{CALL_END}": [F],
    f"{CALL_BEGIN}f{SEPARATOR}{{}} more": [F, content(" more")],
    f"{CALL_BEGIN}function{SEPARATOR}f\n```json\n{{}}\n``{CALL_END}": [F],
    f"{CALL_BEGIN}f{SEPARATOR}{{}} and {v31('f', '{}')}": [F, content(" and "), F],
    # Cut off
    f"{CALL_BEGIN}function{SEPARATOR}f\n```js": [content(f"{CALL_BEGIN}function{SEPARATOR}f\n```js")],
    f'{CALL_BEGIN}f{SEPARATOR}{{"a': [("call", "f", '{"a')],
    f"{CALL_BEGIN}function{SEPARATOR}f\n```json\n{{}}\n``": [F],
    f"{CALL_BEGIN}function{SEPARATOR}f\n```json\n{{}}\n```<｜tool▁ca": [F],
    f"{CALL_BEGIN}f{SEPARATOR}{{}}{CALL_END}<｜tool▁calls▁e": [F],
    f"{CALL_BEGIN}f{SEPARATOR}{{}}{CALL_END} x<｜tool▁calls▁e": [F, content(" x<｜tool▁calls▁e")],
}

EXAMPLES = {"llama": LLAMA, "mistral": MISTRALS, "deepseek": DEEPSEEKS}


def new(form: str) -> ToolCallParser:
    return ToolCallParser(SYNTAXES[form])


@pytest.mark.parametrize(("form", "text"), [(form, text) for form in EXAMPLES for text in EXAMPLES[form]])
def test_examples_however_they_are_cut(form: str, text: str) -> None:
    check_every_split(lambda: new(form), text, EXAMPLES[form][text])


PARTS = {
    "llama": ["<|python_tag|>", '{"name": "f"', ', "parameters": ', ";", "<|", '{"a": "'],
    "mistral": ["[TOOL_CALLS]", "[", "]", "[ARGS]", "[CALL_ID]", "abcdefghi", '{"name": "f"', ', "arguments": ', "f"],
    "deepseek": [CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, SEPARATOR, "function", "f", "```", "json", "<｜"],
}
COMMON = ["{", "}", '"', "\n", " ", ",", ":", "\\", "text", "你", "<", "null", '{"a": 1}']


@pytest.mark.parametrize("form", EXAMPLES)
@moderate
@given(data=st.data(), lengths=cut_lengths)
def test_any_cut_equals_the_whole(form: str, data: st.DataObject, lengths: list[int]) -> None:
    parts = st.sampled_from([*PARTS[form], *COMMON, *EXAMPLES[form]])
    text = data.draw(st.lists(parts, max_size=8).map("".join))
    check_any_cut(lambda: new(form), text, lengths)


WRITE = {
    "llama": lambda calls: "; ".join(f'{{"name": "f", "parameters": {call}}}' for call in calls),
    "mistral": lambda calls: (
        "[TOOL_CALLS] [" + ", ".join(f'{{"name": "f", "arguments": {call}}}' for call in calls) + "]"
    ),
    "mistral_v11": lambda calls: "".join(f"[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{call}" for call in calls),
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


def test_text_is_told_without_delay() -> None:
    parser = new("llama")
    assert parser.push("Hello [") == [ContentDelta("Hello [")]
    parser = new("llama")
    assert parser.push('{"a') == []
    assert parser.push('ge": 3') == [ContentDelta('{"age": 3')]
    parser = new("llama")
    assert parser.push('{"type": "obj') == []
    assert parser.push('ect"') == [ContentDelta('{"type": "object"')]


@pytest.mark.parametrize(
    ("form", "begin", "repeated"),
    [
        ("llama", "", " "),
        ("llama", '{"name": "', "a"),
        ("mistral", "[TOOL_CALLS]", "a"),
        ("mistral", "", "["),
        ("deepseek", CALL_BEGIN, "a"),
        ("deepseek", "", CALL_BEGIN),
    ],
)
def test_long_held_texts_take_linear_time(form: str, begin: str, repeated: str) -> None:
    check_linear_time(lambda: new(form), begin, repeated)
