"""Texts of models that write calls as Python."""

from __future__ import annotations

from openai_bls.output.tool_parsers.families.literals.pythonic import pythonic
from tests.unit.output.parsing import Form, Found, content

STOP = ("call", "stop", "{}")

LA = ("call", "weather", '{"city": "LA", "metric": "C"}')


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

PARTS = [*"[](){}=,:'\"<\\", "weather(", "stop()", "city=", "1.5", "None", " ", "\n", "你", "<|python_start|>"]
SLOW = [("[weather(a=", "["), ("[weather(a=", "1"), ("[weather(a='", "\\"), ("[", "a"), ("", "<|python_start|>")]


FORMS = {
    "pythonic": Form(pythonic(["weather", "stop", "stop-2"]), EXAMPLES, PARTS, SLOW),
}
