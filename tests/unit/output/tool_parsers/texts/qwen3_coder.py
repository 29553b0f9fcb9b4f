"""Texts of Qwen3-Coder: arguments within XML tags."""

from __future__ import annotations

from typing import Any

from openai_bls.output.tool_parsers.families.tags.qwen3_coder import xml_calls
from openai_bls.output.tool_parsers.kinds import ToolSchema
from tests.unit.output.parsing import Form, Found, content

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "metric": {"type": "boolean"},
        "where": {"type": "object"},
        "unit": {"$ref": "#/$defs/Unit"},
        "note": {"type": ["string", "null"]},
        "any": {},
    },
    "$defs": {"Unit": {"type": "string", "enum": ["C", "F"]}},
}


def block(name: str, **values: str) -> str:
    """As Qwen3-Coder's template writes it."""
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def weather(arguments: str) -> tuple[str, str, str]:
    return ("call", "weather", arguments)


PARIS = block("weather", city="Paris")

PARIS_CALL = weather('{"city": "Paris"}')

EXAMPLES: dict[str, Found] = {
    "": [],
    "a <b> <tool": [content("a <b> <tool")],
    PARIS: [PARIS_CALL],
    f"I look.\n\n{PARIS}\n{PARIS}\n": [content("I look.\n\n"), PARIS_CALL, PARIS_CALL],
    f"{PARIS} and {PARIS} done": [PARIS_CALL, content(" and "), PARIS_CALL, content(" done")],
    "<tool_call><function=f></function></tool_call>": [("call", "f", "{}")],
    block("f"): [("call", "f", "{}")],
    block("weather", city="Paris", days="3", metric="True", note="None", any="[1]", where='{"x": "}"}', unit="C"): [
        weather(
            '{"city": "Paris", "days": 3, "metric": true, "note": null, "any": [1], "where": {"x": "}"}, "unit": "C"}'
        )
    ],
    block("weather", city='\n 你好 "x" \\ {}</tool_call>\n\n</parameter </param', days="three", unit="\n F \n"): [
        weather(
            '{"city": "\\n 你好 \\"x\\" \\\\ {}</tool_call>\\n\\n</parameter </param", "days": "three", "unit": "F"}'
        )
    ],
    "<tool_call>\n<function=weather>\n<parameter=city>Paris</parameter><parameter=note></parameter></function>": [
        weather('{"city": "Paris", "note": ""}')
    ],
    block("unknown", x="1", y="text"): [("call", "unknown", '{"x": 1, "y": "text"}')],
    "<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call> done": [
        PARIS_CALL,
        content(" done"),
    ],
    # As Python writes it, where the schema allows no string
    block("weather", where="{'x': 'it\\'s', 'y': [None, True]}"): [
        weather('{"where": {"x": "it\'s", "y": [null, true]}}')
    ],
    block("weather", note="{'x': 1}", days="[1"): [weather('{"note": "{\'x\': 1}", "days": "[1"}')],
    block("weather", where="{'x': y}"): [weather('{"where": "{\'x\': y}"}')],
    # Without the tag that ends a value
    "<tool_call>\n<function=weather>\n<parameter=city>\nNew\nYork\n<parameter=days>\n3\n</function>\n</tool_call>\n": [
        weather('{"city": "New\\nYork", "days": 3}')
    ],
    "<function=weather><parameter=city>a <parameter=b></function>\n</parameter></function>": [
        weather('{"city": "a <parameter=b></function>"}')
    ],
    # No calls
    "<tool_call>": [content("<tool_call>")],
    "</tool_call>": [content("</tool_call>")],
    "a</tool_call>b": [content("a</tool_call>b")],
    '<tool_call>\n{"name": "f"}\n</tool_call>': [content('<tool_call>\n{"name": "f"}\n</tool_call>')],
    "<function=f>(x)": [content("<function=f>(x)")],
    "<function=>\n</function>": [content("<function=>\n</function>")],
    "<function= >\n</function>": [content("<function= >\n</function>")],
    f"<tool_call>\n<tool_call>{PARIS}": [content("<tool_call>\n<tool_call>"), PARIS_CALL],
    f"<function=a<{PARIS}": [content("<function=a<"), PARIS_CALL],
    # Broken off: the call keeps what it got
    "<function=weather><parameter=city>Paris</parameter> and </tool_call>": [
        weather('{"city": "Paris"'),
        content("and </tool_call>"),
    ],
    "<function=weather><parameter=city>Paris</parameter></functional>": [
        weather('{"city": "Paris"'),
        content("</functional>"),
    ],
    "<function=weather><parameter=city\n": [weather("{"), content("<parameter=city\n")],
    "<function=weather>\n<parameter= >": [weather("{"), content("<parameter= >")],
    # Cut off
    "<tool_call>\n<function=wea": [content("<tool_call>\n<function=wea")],
    "<tool_call>\n<function=weather>\n<para": [content("<tool_call>\n<function=weather>\n<para")],
    "<function=weather><parameter=ci": [weather("{")],
    "<function=weather><parameter=city>\nPar": [weather('{"city": "Par')],
    "<function=weather><parameter=city>\nParis\n</param": [weather('{"city": "Paris')],
    "<function=weather><parameter=days>\n1": [weather('{"days": 1')],
    '<function=weather><parameter=note>\nsay "': [weather('{"note": "say \\"')],
    "<function=weather><parameter=city>Paris</parameter></function>\n</tool": [PARIS_CALL],
}

PARTS = [
    *("<tool_call>", "</tool_call>", "<function=", "weather", ">", "</function>", "<parameter=", "</parameter>"),
    *("city", "days", "note", "\n", " ", "<", '"', "12", "null", "text", "你", "\\", "{"),
]
SLOW = [
    ("<function=weather><parameter=city>", "a"),
    ("<function=weather><parameter=city>", "\n"),
    ("<function=weather><parameter=days>", "<"),
    ("<function=", "a"),
    ("", "<tool_call>"),
]


FORMS = {
    "qwen3_coder": Form(xml_calls({"weather": ToolSchema(SCHEMA)}), EXAMPLES, PARTS, SLOW),
}
