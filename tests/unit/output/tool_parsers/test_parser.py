from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.output.events import ContentDelta, Event, ToolCallArguments, ToolCallStart
from openai_bls.output.tool_parsers.families.hermes import SYNTAX
from openai_bls.output.tool_parsers.parser import ToolCallParser, new_call_id
from tests.unit.output.parsing import (
    Found,
    check_any_cut,
    check_every_split,
    check_linear_time,
    content,
    cut_lengths,
    json_values,
    moderate,
    run,
)

Expected = tuple[list[str], list[tuple[str, str]]]
"""The content between the calls, and (name, arguments) of each call."""


def found(expected: Expected) -> Found:
    contents, calls = expected
    parts: Found = [content(contents[0])]
    for call, text in zip(calls, contents[1:], strict=True):
        parts += [("call", *call), content(text)]
    return [part for part in parts if part[0] == "call" or part[1]]


def block(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


WEATHER = block('{"name": "weather", "arguments": {"city": "Paris", "days": [1, {"x": null}]}}')
WEATHER_CALL = ("weather", '{"city": "Paris", "days": [1, {"x": null}]}')

# text → content between the calls, calls
EXAMPLES: dict[str, Expected] = {
    "": ([""], []),
    "Hello <b>you</b>, 你好 👨‍👩‍👧 \0 <": (["Hello <b>you</b>, 你好 👨‍👩‍👧 \0 <"], []),
    " \n ": ([" \n "], []),
    "\n\n text \n": (["\n\n text \n"], []),
    # Well-formed calls
    WEATHER: (["", ""], [WEATHER_CALL]),
    f"\n{WEATHER}\n": (["", ""], [WEATHER_CALL]),
    f"I look it up.\n{WEATHER}\n\n{WEATHER} \n": (["I look it up.\n", "", ""], [WEATHER_CALL, WEATHER_CALL]),
    f"{WEATHER}\n and \n{WEATHER}\n done\n": (["", "\n and \n", "\n done\n"], [WEATHER_CALL, WEATHER_CALL]),
    '<tool_call>{"name":"f","arguments":{}}</tool_call>': (["", ""], [("f", "{}")]),
    block('{"name": "f"}'): (["", ""], [("f", "{}")]),
    block('{"name": "f", "arguments": null}'): (["", ""], [("f", "{}")]),
    block('{"name": "f", "arguments": null, "parameters": {"a": 1}}'): (["", ""], [("f", '{"a": 1}')]),
    block('{"name": "f", "arguments": -1.5e3 }'): (["", ""], [("f", "-1.5e3")]),
    block('{"name": "f", "arguments": [1, 2]}'): (["", ""], [("f", "[1, 2]")]),
    block('{"name": "f", "parameters": {"a" :  1}}'): (["", ""], [("f", '{"a" :  1}')]),
    block('{ "arguments" : {"a": "}"} , "name" : "f" }'): (["", ""], [("f", '{"a": "}"}')]),
    block('{"id": 7, "x": "<\\"}", "y": [{"name": "no"}], "name": "f", "z": {}, "arguments": {}}'): (
        ["", ""],
        [("f", "{}")],
    ),
    block('{"name": "f", "arguments": {"name": "g"}, "name": "h", "arguments": {"i": 1}}'): (
        ["", ""],
        [("f", '{"name": "g"}')],
    ),
    block(r'{"name": "caf\u00e9_\ud83d\udc4d", "arguments": {}}'): (["", ""], [("café_👍", "{}")]),
    # The raw slice is kept: escapes, spaces, numbers, raw new lines, markers in strings
    block('{"name": "f", "arguments": {"a": "\\u4f60\\n\\"<tool_call></tool_call>\\\\", "b":1.0}}'): (
        ["", ""],
        [("f", '{"a": "\\u4f60\\n\\"<tool_call></tool_call>\\\\", "b":1.0}')],
    ),
    block('{"name": "f", "arguments": {\n  "a": "你好 👨‍👩‍👧 \0"\n}}'): (
        ["", ""],
        [("f", '{\n  "a": "你好 👨‍👩‍👧 \0"\n}')],
    ),
    # Arguments in a string are decoded; lone surrogates cannot be text
    block(r'{"name": "f", "arguments": "{\"a\": \"\\n \u4f60 \ud83d\udc4d\"}"}'): (
        ["", ""],
        [("f", '{"a": "\\n 你 👍"}')],
    ),
    block(r'{"name": "f", "arguments": "\ud83d \udc4d \ud83d\ud83d\udc4d\ud83d\n\q\/"}'): (
        ["", ""],
        [("f", "\ufffd \ufffd \ufffd👍\ufffd\n\\q/")],
    ),
    # Cut off or malformed before the call could be told: content
    "<tool_call>": (["<tool_call>"], []),
    "text <tool_c": (["text <tool_c"], []),
    ' \n<tool_call>\n{"name": "f", "argum': ([' \n<tool_call>\n{"name": "f", "argum'], []),
    '<tool_call>{"name": "f", "arguments": 12': (['<tool_call>{"name": "f", "arguments": 12'], []),
    '<tool_call>{"arguments": {"a": 1}, "name": "f': (['<tool_call>{"arguments": {"a": 1}, "name": "f'], []),
    block("not JSON"): ([block("not JSON")], []),
    block('{"arguments": {"a": 1}}') + " \n": ([block('{"arguments": {"a": 1}}') + " \n"], []),
    block('{"name": "", "arguments": {}}'): ([block('{"name": "", "arguments": {}}')], []),
    block('{"name": 7, "arguments": {}}'): ([block('{"name": 7, "arguments": {}}')], []),
    block('{"name" "f"}'): ([block('{"name" "f"}')], []),
    block('{"name": "f", "arguments": }'): ([block('{"name": "f", "arguments": }')], []),
    block('{"name": "f", "x": 1:2}'): ([block('{"name": "f", "x": 1:2}')], []),
    block(r'{"name": "\u12x4"}'): ([block(r'{"name": "\u12x4"}')], []),
    f"a <tool_call><tool_call>\n{WEATHER}": (["a <tool_call><tool_call>\n", ""], [WEATHER_CALL]),
    f"{WEATHER}\n<tool_call>\n": (["", "\n<tool_call>\n"], [WEATHER_CALL]),
    # Cut off or malformed afterwards: the call keeps what it got
    '<tool_call>\n{"name": "f", "arguments": {"a": "b': (["", ""], [("f", '{"a": "b')]),
    '<tool_call>\n{"name": "f", "arguments": {"a": 1}': (["", ""], [("f", '{"a": 1}')]),
    '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_': (["", ""], [("f", '{"a": 1}')]),
    block('{"name": "f", "arguments": {"a": 1') + " x": (["", " x"], [("f", '{"a": 1\n')]),
    block('{"name": "f", "arguments": {"a": 1}'): (["", ""], [("f", '{"a": 1}')]),
    block('{"name": "f", "arguments": {"a": 1}}}'): (["", ""], [("f", '{"a": 1}')]),
    block(r'{"name": "f", "arguments": "{\u1'): (["", ""], [("f", "{")]),
    '<tool_call>{"name": "f"} so <there': (["", " so <there"], [("f", "{}")]),
    f'<tool_call>{{"name": "f"}}\n{WEATHER}': (["", "", ""], [("f", "{}"), WEATHER_CALL]),
    f'<tool_call>{{"name": "f"}} and {WEATHER}': (["", " and ", ""], [("f", "{}"), WEATHER_CALL]),
}


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_however_they_are_cut(text: str) -> None:
    check_every_split(lambda: ToolCallParser(SYNTAX), text, found(EXAMPLES[text]))


fragments = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", '{"name": "f"', ', "arguments": ', '{"a": "', '"', "{", "}", "}}", "\n", " "),
        *("text", "<", "</", "\\", "\\ud83d", "null", "12", ":", ",", "你"),
        *EXAMPLES,
    ]
)


@moderate
@given(text=st.lists(fragments, max_size=8).map("".join), lengths=cut_lengths)
def test_any_cut_equals_the_whole(text: str, lengths: list[int]) -> None:
    check_any_cut(lambda: ToolCallParser(SYNTAX), text, lengths)


@moderate
@given(
    arguments=st.lists(st.dictionaries(st.text(max_size=4), json_values, max_size=3), max_size=3),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 2]),
    as_string=st.booleans(),
)
def test_valid_calls_come_back_whole(
    arguments: list[dict[str, object]], ascii_only: bool, indent: int | None, as_string: bool
) -> None:
    written = [json.dumps(a, ensure_ascii=ascii_only, indent=indent) for a in arguments]
    values = [json.dumps(w, ensure_ascii=ascii_only) if as_string else w for w in written]
    text = "\n".join(block(f'{{"name": "f", "arguments": {value}}}') for value in values)
    assert run(ToolCallParser(SYNTAX), [text]) == [("call", "f", w) for w in written]


def test_streams_without_delay() -> None:
    parser = ToolCallParser(SYNTAX, lambda: "call_x")
    steps: list[tuple[str, list[Event]]] = [
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
    ]
    for text, events in steps:
        assert parser.push(text) == events
    assert parser.finish() == []


def test_call_ids() -> None:
    ids = {new_call_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch(r"call_[A-Za-z0-9_-]{24}", call_id) for call_id in ids)


@pytest.mark.parametrize(
    ("begin", "repeated"),
    [
        ("", " "),
        ('<tool_call>{"arguments": "', "a"),
        ('<tool_call>{"name": "f", "arguments": {}}', "<"),
        ('<tool_call>{"name": "f", "arguments": ', "["),
    ],
)
def test_long_held_texts_take_linear_time(begin: str, repeated: str) -> None:
    check_linear_time(lambda: ToolCallParser(SYNTAX), begin, repeated)
