"""Texts of Gemma 4 and FunctionGemma: strings between delimiters, names without."""

from __future__ import annotations

import json
from typing import Any

from openai_bls.output.tool_parsers.families.literals.gemma import FUNCTION_GEMMA, GEMMA4, GemmaTexts, gemma
from tests.unit.output.parsing import Form, Found, content
from tests.unit.output.tool_parsers.texts.xml_families import SCHEMAS

NOW = ("call", "now", "{}")
PARIS_CALL = ("call", "weather", '{"city": "Paris"}')


def written(texts: GemmaTexts, value: Any) -> str:
    """A value as the templates write it."""
    if isinstance(value, str):
        return f"{texts.quote}{value}{texts.quote}"
    if isinstance(value, dict):
        return "{" + members(texts, value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(written(texts, part) for part in value) + "]"
    return json.dumps(value)


def members(texts: GemmaTexts, arguments: dict[str, Any]) -> str:
    return ",".join(f"{key}:{written(texts, value)}" for key, value in arguments.items())


def call(texts: GemmaTexts, name: str, arguments: dict[str, Any]) -> str:
    """A call as the templates write it."""
    return f"{texts.begin}call:{name}{{{members(texts, arguments)}}}{texts.end}"


PARIS = call(GEMMA4, "weather", {"city": "Paris"})
VALUES = {"city": '你好, "x"\n} <|', "days": 3, "where": {"x": [1, [], {}, {"y": "]"}], "z": -2.5e3}, "note": None}
G = "<|tool_call>call:weather{"

GEMMA: dict[str, Found] = {
    "": [],
    "a <|tool": [content("a <|tool")],
    PARIS: [PARIS_CALL],
    f"I look.\n{PARIS}{call(GEMMA4, 'now', {})}": [content("I look.\n"), PARIS_CALL, NOW],
    f"{PARIS} and {PARIS} done": [PARIS_CALL, content(" and "), PARIS_CALL, content(" done")],
    call(GEMMA4, "weather", VALUES): [("call", "weather", json.dumps(VALUES, ensure_ascii=False))],
    call(GEMMA4, "get-weather.x", {"a": True}): [("call", "get-weather.x", '{"a": true}')],
    # Names between delimiters, white space, commas too few and too many
    G + 'where : { <|"|>3<|"|> : <|"|>x<|"|> } , days: 1 ,} <tool_call|>': [
        ("call", "weather", '{"where": {"3": "x"}, "days": 1}')
    ],
    G + 'city:<|"|>a<|"|>unit:<|"|>C<|"|>}<tool_call|>': [("call", "weather", '{"city": "a", "unit": "C"}')],
    # Words
    G + "city:New York,days:,note:null,unit:108.}<tool_call|>": [
        ("call", "weather", '{"city": "New York", "days": "", "note": null, "unit": "108."}')
    ],
    # The schema allows no string
    G + 'days:<|"|>3<|"|>,where:<|"|>{"x": 1}<|"|>,metric:<|"|>True<|"|>}<tool_call|>': [
        ("call", "weather", '{"days": 3, "where": {"x": 1}, "metric": true}')
    ],
    # No calls
    "<|tool_call>": [content("<|tool_call>")],
    "<|tool_call>call:{}": [content("<|tool_call>call:{}")],
    "<|tool_call>weather{}": [content("<|tool_call>weather{}")],
    f"<|tool_call>{PARIS}": [content("<|tool_call>"), PARIS_CALL],
    # Broken off
    G + "where:[1}": [("call", "weather", '{"where": [1, '), content("}")],
    G + "where:[,]": [("call", "weather", '{"where": ['), content(",]")],
    G + "days:1<b>": [("call", "weather", '{"days": 1'), content("<b>")],
    G + "{}": [("call", "weather", "{"), content("{}")],
    # Cut off
    G[:-3]: [content(G[:-3])],
    G + 'city:<|"|>Par<|"': [("call", "weather", '{"city": "Par')],
    G + "days:1": [("call", "weather", '{"days": 1')],
    G + 'days:<|"|>1': [("call", "weather", '{"days": 1')],
    PARIS[:-3]: [PARIS_CALL],
}
FUNCTION: dict[str, Found] = {
    call(FUNCTION_GEMMA, "weather", VALUES): [("call", "weather", json.dumps(VALUES, ensure_ascii=False))],
    f"{call(FUNCTION_GEMMA, 'weather', {'city': 'Paris'})}{call(FUNCTION_GEMMA, 'now', {})}": [PARIS_CALL, NOW],
    "<start_function_call>call:weather{city:<escape>Paris<escape>,days:<escape>42<escape>}": [
        ("call", "weather", '{"city": "Paris", "days": 42}')
    ],
}
PARTS = [
    "call:",
    "weather",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "city",
    "days",
    "12",
    "null",
    "text",
    "你",
    " ",
    "\n",
    "<",
    '"',
]
FORMS = {
    name: Form(
        gemma(texts, SCHEMAS),
        examples,
        [*texts, *PARTS],
        [
            (f"{texts.begin}call:weather{{city:{texts.quote}", "<"),
            (f"{texts.begin}call:weather{{where:", "["),
            (f"{texts.begin}call:weather{{days:{texts.quote}", "1"),
            (texts.begin, "a"),
            ("", texts.begin),
        ],
    )
    for name, texts, examples in (("gemma4", GEMMA4, GEMMA), ("functiongemma", FUNCTION_GEMMA, FUNCTION))
}
