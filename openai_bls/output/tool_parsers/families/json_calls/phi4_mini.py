"""Phi-4-mini: `functools` and a JSON list of calls."""

from __future__ import annotations

from openai_bls.output.tool_parsers.formats import Sign, ToolFormat
from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import ListReader

_BEGIN = "functools["
SYNTAX = Syntax(lambda _: ListReader(in_list=True), begins=(_BEGIN,))
FORMATS = (
    ToolFormat(
        "phi4_mini_json",
        lambda _: SYNTAX,
        signs=(Sign((_BEGIN,)), Sign(("<|tool|>", "<|/tool|>"))),
        open=_BEGIN,
        begin='{"name": "{name}", "arguments": ',
        end="}",
        separator=", ",
        close="]",
        trigger=_BEGIN,
    ),
)
