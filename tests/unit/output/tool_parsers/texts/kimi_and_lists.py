"""Texts of Kimi K2, and of models that write a list of calls: Hunyuan, MiniMax-M1, Granite."""

from __future__ import annotations

from openai_bls.output.tool_parsers.families.json_calls import granite, hunyuan, kimi_k2
from tests.unit.output.parsing import Form, Found, content

F, G = ("call", "f", "{}"), ("call", "g", '{"a": "]}</tool_calls><|tool_call_end|>"}')
F_JSON, G_JSON = '{"name": "f", "arguments": {}}', f'{{"name": "g", "arguments": {G[2]}}}'


def call(head: str, arguments: str) -> str:
    return f"<|tool_call_begin|>{head}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


def section(*calls: str) -> str:
    """As Kimi K2's template writes them."""
    return f"<|tool_calls_section_begin|>{''.join(calls)}<|tool_calls_section_end|>"


F_0, G_1 = call("functions.f:0", "{}"), call("functions.g:1", G[2])
KIMI: dict[str, Found] = {
    "": [],
    "a <|tool_call": [content("a <|tool_call")],
    section(F_0): [F],
    f"I look. {section(F_0, G_1)} \n": [content("I look. "), F, G],
    f"{section(F_0)} and {section(G_1)} done": [F, content(" and "), G, content(" done")],
    section(call("functions.f:0 ", " {}\n"), "\n", call(" g:12", G[2])): [F, G],
    call("functions.a.b-c:3", "{}"): [("call", "a.b-c", "{}")],
    section(F_0, F_0).replace("calls_section", "call_section"): [F, F],
    f"<|tool_call_section_begin|>{F_0}<|tool_calls_section_end|> x": [F, content(" x")],
    # The same id twice
    section(F_0, F_0): [F, F],
    # No calls
    section(): [content(section())],
    section(call("functions.f", "{}")): [content(section(call("functions.f", "{}")))],
    section(call("functions.f:x", "{}")): [content(section(call("functions.f:x", "{}")))],
    section(call("functions.:0", "{}")): [content(section(call("functions.:0", "{}")))],
    section(call("functions.f:0", "x")): [content(section(call("functions.f:0", "x")))],
    # Cut off
    section(F_0)[:-3]: [F],
    f"<|tool_calls_section_begin|>{F_0}"[:-3]: [F],
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.f": [
        content("<|tool_calls_section_begin|><|tool_call_begin|>functions.f")
    ],
    '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": "b': [("call", "f", '{"a": "b')],
}
BLOCK: dict[str, Found] = {
    "": [],
    "a <tool_calls": [content("a <tool_calls")],
    # Hunyuan
    f"<tool_calls>[{F_JSON}]</tool_calls>": [F],
    f"I look. <tool_calls>[{F_JSON}, {G_JSON}]</tool_calls>\n</answer>": [
        content("I look. "), F, G, content("\n</answer>"),
    ],
    # MiniMax-M1
    f"<tool_calls>\n{F_JSON}\n{G_JSON}\n</tool_calls>": [F, G],
    f"<tool_calls>\n{F_JSON}\n</tool_calls>\n<tool_calls>\n{G_JSON}\n</tool_calls>\n": [F, G],
    f"<tool_calls>\n{F_JSON}\n</tool_calls> and": [F, content(" and")],
    f"<tool_calls>[{G_JSON},{F_JSON},]</tool_calls>": [G, F, content(",]</tool_calls>")],
    # No calls
    "<tool_calls>": [content("<tool_calls>")],
    "<tool_calls>[]</tool_calls>": [content("<tool_calls>[]</tool_calls>")],
    "<tool_calls>\nnone\n</tool_calls>": [content("<tool_calls>\nnone\n</tool_calls>")],
    # Cut off
    f"<tool_calls>[{F_JSON}, {G_JSON}": [F, G],
    f"<tool_calls>[{F_JSON}]</tool_": [F],
    f"<tool_calls>\n{F_JSON}\n": [F],
    '<tool_calls>[{"name": "f", "arg': [content('<tool_calls>[{"name": "f", "arg')],
    '<tool_calls>[{"name": "f", "arguments": {"a": 1': [("call", "f", '{"a": 1')],
}  # fmt: skip
GRANITES: dict[str, Found] = {
    "": [],
    f"<|tool_call|>[{F_JSON}, {G_JSON}]": [F, G],
    f"I look.\n<|tool_call|> [\n  {F_JSON},\n  {G_JSON}\n]\nI'll see.": [
        content("I look.\n"), F, G, content("\nI'll see."),
    ],
    f"<tool_call> [{F_JSON}]": [F],
    '<|tool_call|> [{"arguments": {}, "name": "f"}, {"arguments": {"x": 1}, "name": "h"}]': [
        F, ("call", "h", '{"x": 1}'),
    ],
    "<|tool_call|>[]": [content("<|tool_call|>[]")],
    "<|tool_call|> none": [content("<|tool_call|> none")],
    '<|tool_call|>[{"name": "f", "arguments": {': [("call", "f", "{")],
}  # fmt: skip
PARTS = ["text", "\n", " ", "<", "{", "}", "]", ",", ":0", '"', "你", "functions.", "<tool_calls>", "</tool_calls>"]


FORMS = {
    "kimi": Form(kimi_k2.SYNTAX, KIMI, PARTS, [("<|tool_call_begin|>", "a"), ("", "<|tool_calls_section_begin|>")]),
    "block": Form(hunyuan.SYNTAX, BLOCK, PARTS, [(f"<tool_calls>{F_JSON}", "\n")]),
    "granite": Form(granite.SYNTAX, GRANITES, PARTS, [("", "<tool_call>[")]),
}
