"""Texts of Hermes 2 Pro and Qwen2.5: JSON within tags."""

from __future__ import annotations

from openai_bls.output.tool_parsers.families.json_calls.hermes import SYNTAX
from tests.unit.output.parsing import Form, Found, content

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
    # As Python writes it
    block("{'name': 'f', 'arguments': {'a': 'it\\'s', \"b\": [True, None, 1.5], 'c': {}}}"): (
        ["", ""],
        [("f", '{"a": "it\'s", "b": [true, null, 1.5], "c": {}}')],
    ),
    block("{'type': 'function', 'name': 'f'}"): (["", ""], [("f", "{}")]),
    block("{'name': 'f', 'arguments': '{\"a\": 1}'}"): (["", ""], [("f", '{"a": 1}')]),
    block("{'name': 'f', 'arguments': {'a': x}}"): (["", ""], [("f", '{"a": ')]),
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

PARTS = [
    *("<tool_call>", "</tool_call>", '{"name": "f"', ', "arguments": ', '{"a": "', '"', "{", "}", "}}", "\n", " "),
    *("{'name': 'f'", ", 'arguments': ", "{'a': '", "'", "True"),
    *("text", "<", "</", "\\", "\\ud83d", "null", "12", ":", ",", "你"),
]
SLOW = [
    ("", " "),
    ('<tool_call>{"arguments": "', "a"),
    ('<tool_call>{"name": "f", "arguments": {}}', "<"),
    ('<tool_call>{"name": "f", "arguments": ', "["),
]


FORMS = {
    "hermes": Form(SYNTAX, {text: found(expected) for text, expected in EXAMPLES.items()}, PARTS, SLOW),
}
