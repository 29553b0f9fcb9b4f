"""Granite 20B for functions: a JSON object after `<function_call>`, any number of times."""

from __future__ import annotations

from openai_bls.output.tool_parsers.formats import Sign, ToolFormat
from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import CallScanner

_BEGIN = "<function_call>"
SYNTAX = Syntax(lambda _: CallScanner(), begins=(_BEGIN,))
FORMATS = (
    ToolFormat(
        "granite-20b-fc",
        lambda _: SYNTAX,
        signs=(Sign((f"{_BEGIN} ", "<function_response>")),),
        begin=f'{_BEGIN} {{"name": "{{name}}", "arguments": ',
        end="}",
        separator="",
        trigger=_BEGIN,
        special=frozenset({_BEGIN}),
    ),
)
