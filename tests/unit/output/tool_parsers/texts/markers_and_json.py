"""Texts of models that write JSON or Python between markers: LFM2, Phi-4-mini, Nemotron, Command, InternLM, ..."""

from __future__ import annotations

from openai_bls.output.tool_parsers.families.json_calls import (
    apertus,
    cohere,
    granite_20b,
    internlm2,
    nemotron,
    phi4_mini,
)
from openai_bls.output.tool_parsers.families.literals.lfm2 import lfm2
from tests.unit.output.parsing import Form, Found, content

G_ARGUMENTS = '{"a": "]}</TOOLCALL><|END_ACTION|>functools[", "b": [{}]}'
F, G = ("call", "f", "{}"), ("call", "g", G_ARGUMENTS)
F_JSON, G_JSON = '{"name": "f", "arguments": {}}', f'{{"name": "g", "arguments": {G_ARGUMENTS}}}'
PAIR = f"[{F_JSON}, {G_JSON}]"

PHI: dict[str, Found] = {
    "": [],
    "of func": [content("of func")],
    f"functools{PAIR}": [F, G],
    f"I look. functools{PAIR}\nDone.": [content("I look. "), F, G, content("\nDone.")],
    f"functools[\n {F_JSON} ,\n {F_JSON}\n]": [F, F],
    'functools[{"name": "f", "arguments": null}]': [F],
    "functools[]": [content("functools[]")],
    "functools[lru_cache]": [content("functools[lru_cache]")],
    "functools.cache": [content("functools.cache")],
    'functools[{"name": "f", "arg': [content('functools[{"name": "f", "arg')],
    'functools[{"name": "f", "arguments": {"a": 1': [("call", "f", '{"a": 1')],
}
NEMOTRON: dict[str, Found] = {
    "": [],
    f"<TOOLCALL>{PAIR}</TOOLCALL>": [F, G],
    f"I look.\n<TOOLCALL> {PAIR} </TOOLCALL>\n": [content("I look.\n"), F, G],
    f"<TOOLCALL>[{F_JSON}]</TOOLCALL> and": [F, content(" and")],
    f"<TOOLCALL>{F_JSON}</TOOLCALL>": [F],
    "<TOOLCALL>[]</TOOLCALL>": [content("<TOOLCALL>[]</TOOLCALL>")],
    f"<TOOLCALL>[{F_JSON}]</TOOL": [F],
}


def action(*calls: str) -> str:
    """As the template of Command R7B writes them."""
    rows = ",\n".join(f'    {{"tool_call_id": "{at}", {one}}}' for at, one in enumerate(calls))
    return f"<|START_ACTION|>[\n{rows}\n]<|END_ACTION|>"


F_TOOL, G_TOOL = '"tool_name": "f", "parameters": {}', f'"tool_name": "g", "parameters": {G_ARGUMENTS}'
COHERE: dict[str, Found] = {
    "": [],
    action(F_TOOL): [F],
    f"I look. {action(F_TOOL, G_TOOL)}": [content("I look. "), F, G],
    f"<|START_ACTION|>[{{{G_TOOL}}}, {{{F_TOOL}}}]<|END_ACTION|> x": [G, F, content(" x")],
    f"<|START_ACTION|>{PAIR}<|END_ACTION|>": [F, G],
    "<|START_ACTION|>[]<|END_ACTION|>": [content("<|START_ACTION|>[]<|END_ACTION|>")],
    action(F_TOOL)[:-4]: [F],
    '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name"': [
        content('<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name"')
    ],
}


def plugin(call: str) -> str:
    """As the template of InternLM 2.5 writes it."""
    return f"<|action_start|><|plugin|>\n{call}<|action_end|>"


INTERN: dict[str, Found] = {
    "": [],
    plugin(F_JSON): [F],
    f"I look.{plugin(F_JSON)}{plugin(G_JSON)}": [content("I look."), F, G],
    "<|action_start|> <|plugin|>{'name'": [content("<|action_start|> <|plugin|>{'name'")],
    '<|action_start|><|plugin|>{"name": "f", "parameters": {}}<|action_end|> x': [F, content(" x")],
    "<|action_start|><|interpreter|>\n1 + 1<|action_end|>": [
        content("<|action_start|><|interpreter|>\n1 + 1<|action_end|>")
    ],
    plugin(F_JSON)[:-4]: [F],
}
GRANITE: dict[str, Found] = {
    "": [],
    f"<function_call> {F_JSON}": [F],
    f"<function_call> {F_JSON}<function_call> {G_JSON}": [F, G],
    f"I look.\n<function_call>{F_JSON}\n<function_call>\n{G_JSON}\n": [content("I look.\n"), F, G],
    f"<function_call> {F_JSON} x": [F, content(" x")],
    "<function_call> f()": [content("<function_call> f()")],
    '<function_call> {"name": "f", "arguments": {"a": 1': [("call", "f", '{"a": 1')],
}
APERTUS: dict[str, Found] = {
    "": [],
    f'<|tools_prefix|>[{{"f": {{}}}}, {{"g": {G_ARGUMENTS}}}]<|tools_suffix|>': [F, G],
    'I look.<|tools_prefix|> [ { "f" : {} } ] <|tools_suffix|> x': [content("I look."), F, content(" x")],
    "<|tools_prefix|>[]<|tools_suffix|>": [content("<|tools_prefix|>[]<|tools_suffix|>")],
    '<|tools_prefix|>[{"f": 1}]': [content('<|tools_prefix|>[{"f": 1}]')],
    '<|tools_prefix|>[{"": {}}]': [content('<|tools_prefix|>[{"": {}}]')],
    '<|tools_prefix|>[{"f": {}, "g": {}}]': [F, content(', "g": {}}]')],
    '<|tools_prefix|>[{"f": {"a": 1': [("call", "f", '{"a": 1')],
}
STOP = ("call", "stop", "{}")
LFM2: dict[str, Found] = {
    "": [],
    "<|tool_call_start|>[weather(city=\"LA\", days=2), stop()]<|tool_call_end|>": [
        ("call", "weather", '{"city": "LA", "days": 2}'), STOP,
    ],
    "I look. <|tool_call_start|>[stop()]<|tool_call_end|> Done.": [content("I look. "), STOP, content(" Done.")],
    "[stop()]": [content("[stop()]")],
    "<|tool_call_start|>stop()": [content("<|tool_call_start|>stop()")],
    "<|tool_call_start|>[weather(a={'b': None})]<|tool_call_end|>": [("call", "weather", '{"a": {"b": null}}')],
    "<|tool_call_start|>[stop()]<|tool_c": [STOP],
    "<|tool_call_start|>[weather(city='L": [("call", "weather", '{"city": "L')],
}  # fmt: skip
PARTS = [
    "text",
    "\n",
    " ",
    "<",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    '"',
    "你",
    "f",
    F_JSON,
    G_JSON,
    '{"f": {}}',
    "functools[",
]
FORMS = {
    "phi4": Form(phi4_mini.SYNTAX, PHI, PARTS, [("functools[", "{"), ("", "f"), (f"functools[{F_JSON}", " ")]),
    "nemotron": Form(nemotron.SYNTAX, NEMOTRON, PARTS, [(f"<TOOLCALL>{F_JSON}", "\n")]),
    "cohere": Form(cohere.SYNTAX, COHERE, [*PARTS, f"{{{F_TOOL}}}"], [('<|START_ACTION|>[{"tool_name": "', "a")]),
    "internlm2": Form(internlm2.SYNTAX, INTERN, PARTS, [("", "<|action_start|>")]),
    "granite20b": Form(granite_20b.SYNTAX, GRANITE, PARTS, [("<function_call>", " ")]),
    "apertus": Form(apertus.SYNTAX, APERTUS, PARTS, [('<|tools_prefix|>[{"', "a")]),
    "lfm2": Form(lfm2(["weather", "stop"]), LFM2, [*PARTS, "stop()"], [("<|tool_call_start|>[weather(a='", "\\")]),
}
