"""Texts of xLAM, GigaChat, Solar Open, Functionary, Kimi K3 and MiniMax M3."""

from __future__ import annotations

import json
from typing import Any

from openai_bls.output.tool_parsers.families.json_calls import functionary, gigachat3, solar_open
from openai_bls.output.tool_parsers.families.json_calls.xlam import xlam
from openai_bls.output.tool_parsers.families.tags.kimi_k3 import kimi_k3
from openai_bls.output.tool_parsers.families.tags.minimax_m3 import minimax_m3
from openai_bls.output.tool_parsers.kinds import ToolSchema
from tests.unit.output.parsing import Form, Found, content
from tests.unit.output.tool_parsers.texts.markers_and_json import F_JSON, G_JSON, PAIR, F, G

XLAM: dict[str, Found] = {
    "": [],
    PAIR: [F, G],
    f" [\n {F_JSON} ,{G_JSON}]\n": [F, G],
    '[{"type": "function", "name": "f", "arguments": {}}]': [F],
    f"```json\n[{F_JSON}]\n```": [F],
    f"I look.\n```json\n[{F_JSON}]\n``` So.": [content("I look."), F, content(" So.")],
    f"I look.[TOOL_CALLS][{F_JSON}]": [content("I look."), F],
    f"I look.<tool_call>[{F_JSON}, {G_JSON}]</tool_call>": [content("I look."), F, G],
    # No calls
    "[]": [content("[]")],
    "[1] is": [content("[1] is")],
    '[{"name": "other", "arguments": {}}]': [content('[{"name": "other", "arguments": {}}]')],
    '[{"name": "f"}]': [content('[{"name": "f"}]')],
    f"```json\n[{F_JSON}] x": [F, content("] x")],
    "```json\n[1]\n```": [content("```json\n[1]\n```")],
    'So:\n```json\n[{"a": 1}]\n```': [content('So:\n```json\n[{"a": 1}]\n```')],
    f"So: [{F_JSON}]": [content(f"So: [{F_JSON}]")],
    # Cut off
    '[{"name": "f", "arg': [content('[{"name": "f", "arg')],
    '[{"name": "f", "arguments": {"a": 1': [("call", "f", '{"a": 1')],
    f"[{F_JSON}": [F],
}
ROLE = "<|message_sep|>\n\nfunction call<|role_sep|>\n"
GIGACHAT: dict[str, Found] = {
    "": [],
    f"{ROLE}{F_JSON}": [F],
    f"I look.{ROLE}{G_JSON}{ROLE}{F_JSON}": [content("I look.\n\n"), G, F],
    f"I look.<|function_call|>{F_JSON}<|message_sep|>": [content("I look."), F],
    "Hello<|message_sep|>\n\n": [content("Hello\n\n")],
    "a function call": [content("a function call")],
    "function call<|role_sep|>\nno": [content("function call<|role_sep|>\nno")],
    '<|function_call|>{"name": "f", "arguments": {"a": 1': [("call", "f", '{"a": 1')],
}


def solar(call_id: str, name: str, arguments: str) -> str:
    return f"<|tool_call:begin|>{call_id}<|tool_call:name|>{name}<|tool_call:args|>{arguments}<|tool_call:end|>"


SOLAR: dict[str, Found] = {
    "": [],
    f"<|tool_calls|>{solar('a1b2c3d4e5', 'f', '{}')}{solar('b', 'g', G[2])}<|calls|>": [F, G],
    f"I look.{solar('', 'f', ' {}')}": [content("I look."), F],
    "<|tool_calls|><|calls|>": [content("<|tool_calls|><|calls|>")],
    solar("a", "", "{}"): [content(solar("a", "", "{}"))],
    solar("a", "f", "1"): [content(solar("a", "f", "1"))],
    "<|tool_calls|><|tool_call:begin|>a<|tool_call:name|>f<|tool_call:args|>": [
        content("<|tool_calls|><|tool_call:begin|>a<|tool_call:name|>f<|tool_call:args|>")
    ],
    solar("a", "f", '{"a": 1')[:-17]: [("call", "f", '{"a": 1')],
}
FUNCTIONARY: dict[str, Found] = {
    "": [],
    f"<function=f>{{}}</function><function=g>{G[2]}</function>": [F, G],
    "I look.\n<function=f> {}</function>\n": [content("I look.\n"), F],
    "<function=f>x": [content("<function=f>x")],
    "<function=>{}": [content("<function=>{}")],
    "<function=f\n>{}": [content("<function=f\n>{}")],
    '<function=f>{"a": 1': [("call", "f", '{"a": 1')],
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"enum": ["C", "F"]},
        "where": {"$ref": "#/$defs/Where"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "any": {},
    },
    "$defs": {
        "Where": {
            "anyOf": [{"type": "null"}, {"type": "object", "properties": {"x": {"type": "string"}, "where": {}}}],
            "additionalProperties": {"type": "integer"},
        }
    },
}
SCHEMAS = {"weather": ToolSchema(SCHEMA)}
NOW = ("call", "now", "{}")
C = "<|close|>call<|sep|>"


def k3_call(name: str, *arguments: tuple[str, str, str]) -> str:
    written = "".join(
        f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>'
        for key, kind, value in arguments
    )
    return f'<|open|>call tool="{name}" index="1"<|sep|>{written}{C}'


def k3_tools(*calls: str) -> str:
    return f"<|open|>tools<|sep|>{''.join(calls)}<|close|>tools<|sep|>"


PARIS = k3_call("weather", ("city", "string", "Paris <|close|>x"), ("days", "number", "2"))
PARIS_CALL = ("call", "weather", '{"city": "Paris <|close|>x", "days": 2}')
K3: dict[str, Found] = {
    "": [],
    k3_tools(PARIS, k3_call("now")): [PARIS_CALL, NOW],
    f"I look.<|close|>response<|sep|>{k3_tools(PARIS)}<|close|>message<|sep|>": [content("I look."), PARIS_CALL],
    "Hello<|close|>response<|sep|><|close|>message<|sep|>": [content("Hello")],
    k3_tools(k3_call("a &quot;b&quot;", ("&amp;", "object", '{"x": [true]}'))): [
        ("call", 'a "b"', '{"&": {"x": [true]}}')
    ],
    # The type says more than the schema.
    k3_tools(k3_call("weather", ("days", "string", "2"), ("city", "number", "2"))): [
        ("call", "weather", '{"days": "2", "city": 2}')
    ],
    k3_tools(f'<|open|>call tool="now"<|sep|><|open|>json type="object"<|sep|>{G[2]}<|close|>json<|sep|>{C}'): [
        ("call", "now", G[2])
    ],
    "<|open|>tools<|sep|><|close|>tools<|sep|>": [content("<|open|>tools<|sep|><|close|>tools<|sep|>")],
    f"<|open|>tools<|sep|>{k3_call('')}": [content(f"<|open|>tools<|sep|>{k3_call('')}")],
    k3_tools(PARIS).partition("Paris")[0]: [("call", "weather", '{"city": "')],
    k3_tools(PARIS, PARIS)[: len(k3_tools(PARIS)) - 10]: [PARIS_CALL],
}
NS = "]<]minimax[>["


def m3_call(name: str, *tags: str) -> str:
    return f'{NS}<invoke name="{name}">{"".join(tags)}{NS}</invoke>\n'


def tag(name: str, *inner: str) -> str:
    return f"{NS}<{name}>{''.join(inner)}{NS}</{name}>"


def m3(*calls: str) -> str:
    return f"{NS}<tool_call>\n{''.join(calls)}{NS}</tool_call>"


def weather(**arguments: object) -> tuple[str, str, str]:
    return ("call", "weather", json.dumps(arguments, ensure_ascii=False))


WHERE = tag("where", tag("x", "1"), tag("where", tag("where", "1"), tag("y", "b")), tag("z", "3"))
M3: dict[str, Found] = {
    "": [],
    f"a {NS}<tool": [content(f"a {NS}<tool")],
    m3(m3_call("weather", tag("city", "Paris"), tag("days", "2")), m3_call("now")): [
        weather(city="Paris", days=2), NOW,
    ],
    f"I look.\n{m3(m3_call('now'))}\n": [content("I look.\n"), NOW],
    # Values of several tags, of which one has the name of the argument
    m3(m3_call("weather", WHERE)): [
        weather(where={"x": "1", "where": {"where": 1, "y": "b"}, "z": 3})
    ],
    m3(m3_call("weather", tag("tags", tag("item", "1"), tag("item", "a\n")), tag("unit", "C"))): [
        weather(tags=["1", "a\n"], unit="C")
    ],
    m3(m3_call("weather", tag("any", tag("item", "1"), tag("item", tag("a", "")))), m3_call("x", tag("y", "2"))): [
        weather(any=[1, {"a": ""}]), ("call", "x", '{"y": 2}'),
    ],
    m3(m3_call("weather", tag("any", tag("tag", "a"), tag("tag", "b")))): [weather(any={"tag": ["a", "b"]})],
    m3(m3_call("weather", tag("tags", ""), tag("where", ""), tag("where", "null"))): [
        ("call", "weather", '{"tags": [], "where": {}, "where": null}')
    ],
    # As JSON
    m3(m3_call("weather", tag("tags", '["a"]'))): [weather(tags=["a"])],
    # Tags that do not fit together, or are text
    m3(m3_call("weather", tag("any", f"{NS}<a>b{NS}</c>"))): [weather(any=f"{NS}<a>b{NS}</c>")],
    m3(m3_call("weather", tag("city", f"a {NS}<b> </city>"))): [weather(city=f"a {NS}<b> </city>")],
    # No calls
    f"{NS}<tool_call>{NS}</tool_call>": [content(f"{NS}<tool_call>{NS}</tool_call>")],
    f'{NS}<tool_call>{NS}<invoke name="now">x': [content(f'{NS}<tool_call>{NS}<invoke name="now">x')],
    f'{NS}<tool_call>{NS}<invoke name="">': [content(f'{NS}<tool_call>{NS}<invoke name="">')],
    # Cut off
    f'{NS}<tool_call>{NS}<invoke name="weather">{NS}<city>Paris{NS}</': [("call", "weather", '{"city": "Paris')],
    f'{NS}<tool_call>{NS}<invoke name="weather">{NS}<days>12': [("call", "weather", '{"days": 12')],
    f'{NS}<tool_call>{NS}<invoke name="weather">{NS}<where>{NS}<x>1': [("call", "weather", '{"where": ')],
}  # fmt: skip
PARTS = ["text", "\n", " ", "<", "{", "}", "[", "]", ",", '"', "你", "f", F_JSON, G_JSON, "`", "function call", NS]
FORMS = {
    "xlam": Form(xlam(["f", "g"]), XLAM, PARTS, [('[{"name": "f', '"'), ("\n```json\n[{", " "), ("", "\n")]),
    "gigachat": Form(gigachat3.SYNTAX, GIGACHAT, PARTS, [("<|function_call|>", " "), ("", "f")]),
    "solar": Form(solar_open.SYNTAX, SOLAR, PARTS, [("<|tool_call:begin|>", "a"), ("", "<|tool_call:begin")]),
    "functionary": Form(functionary.SYNTAX, FUNCTIONARY, PARTS, [("<function=", "a")]),
    "kimi_k3": Form(kimi_k3(SCHEMAS), K3, [*PARTS, PARIS], [("<|open|>tools<|sep|>", " "), ("", "<|open|>tools")]),
    "minimax_m3": Form(
        minimax_m3(SCHEMAS),
        M3,
        [*PARTS, tag("city", "a"), m3_call("now")],
        [(f'{NS}<tool_call>{NS}<invoke name="weather">{NS}<where>', f"{NS}<x>"), ("", NS)],
    ),
}
