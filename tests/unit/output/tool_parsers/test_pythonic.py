from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.output.events import ToolCallArguments, ToolCallStart
from openai_bls.output.tool_parsers.families.pythonic import pythonic
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

SYNTAX = pythonic(["weather", "stop", "stop-2"])
STOP = ("call", "stop", "{}")
LA = ("call", "weather", '{"city": "LA", "metric": "C"}')


def new() -> ToolCallParser:
    return ToolCallParser(SYNTAX)


def weather(arguments: str) -> tuple[str, str, str]:
    return ("call", "weather", arguments)


EXAMPLES: dict[str, Found] = {
    "": [],
    "Hello [you], [stop](x) 你好": [content("Hello [you], [stop](x) 你好")],
    "[stop()]": [STOP],
    "[weather(city='LA', metric='C')]": [LA],
    "[weather(city='LA',metric='C'),stop(),stop-2( a = 1 , )]": [LA, STOP, ("call", "stop-2", '{"a": 1}')],
    " \n[ weather ( city = 'LA' , metric = 'C' ) , \n stop ( ) , ] \n": [LA, STOP],
    "[weather(city='LA', metric='C')]\nDone.": [LA, content("\nDone.")],
    "<|python_start|>[weather(city='LA', metric='C'), stop()]<|python_end|>": [LA, STOP],
    "<|python_start|>[stop()": [STOP],
    "I look. <|python_start|>[stop()]<|python_end|> ": [content("I look. "), STOP],
    "[weather(name='Doe', age=9, address={'city': 'LA', 'n': {}}, role=None, passed=True, aliases=['J', [], 'K'])]": [
        weather(
            '{"name": "Doe", "age": 9, "address": {"city": "LA", "n": {}}, "role": null, "passed": true, '
            '"aliases": ["J", [], "K"]}'
        )
    ],
    r"""[weather(city='Martha\'s Vineyard', metric='"cool units"', x="a\n\x41\u4f60\U0001f44d\ud83d\udc4d\q")]""": [
        weather('{"city": "Martha\'s Vineyard", "metric": "\\"cool units\\"", "x": "a\\nA你👍👍\\\\q"}')
    ],
    # As JSON
    '[weather(a={"b": [true, false, null, 1.0, -2e3]}, c=[{"d": "}"},])]': [
        weather('{"a": {"b": [true, false, null, 1.0, -2e3]}, "c": [{"d": "}"}]}')
    ],
    "[weather(a=1_000, b=.5, c=0x10, d=+3, e=5.)]": [weather('{"a": 1000, "b": 0.5, "c": 16, "d": 3, "e": 5.0}')],
    # No calls
    "[1, 2]": [content("[1, 2]")],
    "[]": [content("[]")],
    "[other()]": [content("[other()]")],
    "stop()": [content("stop()")],
    "[stop]": [content("[stop]")],
    "[stop(x)]": [content("[stop(x)]")],
    "[weather('LA')]": [content("[weather('LA')]")],
    "A [stop()]": [content("A [stop()]")],
    "<|python_start|>print(1)": [content("<|python_start|>print(1)")],
    # Broken off: the call keeps what it got
    "[weather(city=x)]": [weather('{"city": '), content(")]")],
    "[weather(city='LA', 3)]": [weather('{"city": "LA"'), content(")]")],
    "[weather(a=1e999), stop()]": [weather('{"a": 1e999}'), STOP],
    "[weather(a=nan)]": [weather('{"a": '), content(")]")],
    "[weather(a={'b'})]": [weather('{"a": {"b"'), content("})]")],
    "[weather(a={1: 2})]": [weather('{"a": {'), content("1: 2})]")],
    "[weather(a=[1})]": [weather('{"a": [1'), content("})]")],
    "[stop() stop()]": [STOP, content(" stop()]")],
    "[stop(), other()]": [STOP, content(", other()]")],
    # Cut off
    "[wea": [content("[wea")],
    "[weather(ci": [content("[weather(ci")],
    "[weather(city='Par": [weather('{"city": "Par')],
    "[weather(days=12": [weather('{"days": 12')],
    "[weather(city='LA', metric='C'), st": [LA, content(", st")],
    "[weather(city='LA', metric='C'),": [LA],
    "[stop()]<|python_e": [STOP],
}


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_however_they_are_cut(text: str) -> None:
    check_every_split(new, text, EXAMPLES[text])


parts = st.sampled_from(
    [*"[](){}=,:'\"<\\", "weather(", "stop()", "city=", "1.5", "None", " ", "\n", "你", "<|python_start|>", *EXAMPLES]
)


@moderate
@given(text=st.lists(parts, max_size=8).map("".join), lengths=cut_lengths)
def test_any_cut_equals_the_whole(text: str, lengths: list[int]) -> None:
    check_any_cut(new, text, lengths)


@moderate
@given(values=st.dictionaries(st.sampled_from(["a", "b_1", "中"]), json_values), lengths=cut_lengths)
@pytest.mark.parametrize("write", [repr, json.dumps])
def test_values_come_back(write: Any, values: dict[str, Any], lengths: list[int]) -> None:
    text = f"[weather({', '.join(f'{key}={write(value)}' for key, value in values.items())})]"
    [(_, name, arguments)] = run(new(), cut(text, lengths))
    assert name == "weather"
    assert json.loads(arguments) == values


def test_strings_stream() -> None:
    parser = ToolCallParser(SYNTAX, lambda: "call_x")
    assert parser.push("[weather(city") == []
    assert parser.push("='New ") == [ToolCallStart(0, "call_x", "weather"), ToolCallArguments(0, '{"city": "New ')]
    assert parser.push("York\\") == [ToolCallArguments(0, "York")]
    assert parser.push("'s', days=1") == [ToolCallArguments(0, '\'s", "days": ')]
    assert parser.push("2)") == [ToolCallArguments(0, "12}")]
    assert parser.push("]") == []
    assert parser.finish() == []


@pytest.mark.parametrize(
    ("begin", "repeated"),
    [("[weather(a=", "["), ("[weather(a=", "1"), ("[weather(a='", "\\"), ("[", "a"), ("", "<|python_start|>")],
)
def test_long_texts_take_linear_time(begin: str, repeated: str) -> None:
    check_linear_time(new, begin, repeated)
