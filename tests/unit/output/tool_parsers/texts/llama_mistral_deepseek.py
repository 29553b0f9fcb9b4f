"""Texts of Llama 3.1, of the Mistral models, and of DeepSeek up to V3.1: JSON after markers."""

from __future__ import annotations

from openai_bls.output.tool_parsers.families.json_calls import mistral
from openai_bls.output.tool_parsers.families.json_calls.llama3_json import llama3_json
from openai_bls.output.tool_parsers.families.tags import deepseek
from openai_bls.output.tool_parsers.families.tags.deepseek import (
    CALL_BEGIN,
    CALL_END,
    CALLS_BEGIN,
    CALLS_END,
    SEPARATOR,
)
from tests.unit.output.parsing import Form, Found, content

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
    '[{"name": "f", "parameters": {}}]': [content('[{"name": "f", "parameters": {}}]')],
    '{"a": [{"name": "f", "parameters": {}}]}': [content('{"a": [{"name": "f", "parameters": {}}]}')],
    'text {"name": "ff", "parameters": {}}': [content('text {"name": "ff", "parameters": {}}')],
    'text {"name": "f"}': [content('text {"name": "f"}')],
    # Behind text
    'text {"name": "f", "parameters": {}} more': [content("text "), F, content(" more")],
    '```json\n{"name": "f", "parameters": {}}\n```': [content("```json\n"), F, content("\n```")],
    'A {"name": "g", {"name": "f", "parameters": {}}; {"name": "f", "parameters": {}}': [
        content('A {"name": "g", '),
        F,
        F,
    ],
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

JSON_PARTS = ["{", "}", '"', "\n", " ", ",", ":", "\\", "text", "你", "<", "null", '{"a": 1}']


FORMS = {
    "llama": Form(
        llama3_json(["f", "weather"]),
        LLAMA,
        ["<|python_tag|>", '{"name": "f"', ', "parameters": ', ";", "<|", '{"a": "', *JSON_PARTS],
        [("", " "), ('{"name": "', "a")],
    ),
    "mistral": Form(
        mistral.SYNTAX,
        MISTRALS,
        ["[TOOL_CALLS]", "[", "]", "[ARGS]", "[CALL_ID]", "abcdefghi", '{"name": "f"', ', "arguments": ', *JSON_PARTS],
        [("[TOOL_CALLS]", "a"), ("", "[")],
    ),
    "deepseek": Form(
        deepseek.SYNTAX,
        DEEPSEEKS,
        [CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, SEPARATOR, "function", "f", "```", "json", "<｜", *JSON_PARTS],
        [(CALL_BEGIN, "a"), ("", CALL_BEGIN)],
    ),
}
