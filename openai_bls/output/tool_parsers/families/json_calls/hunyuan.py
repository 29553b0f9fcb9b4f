"""Hunyuan-A13B and Apriel: a JSON list of calls between `<tool_calls>` and `</tool_calls>`."""

from __future__ import annotations

from openai_bls.output.tool_parsers.formats import Sign, ToolFormat
from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import ListReader

SYNTAX = Syntax(lambda _: ListReader(), begins=("<tool_calls>",), closers=("</tool_calls>",))
HUNYUAN_A13B = ToolFormat(
    "hunyuan_a13b",
    lambda _: SYNTAX,
    signs=(
        Sign(("<tool_calls>[{", "</tool_calls>", "arguments")),
        # Apriel 1.6
        Sign(("<tool_calls>[", "]</tool_calls>", '{"name": "', '"arguments": ')),
    ),
    open="<tool_calls>[",
    begin='{"name": "{name}", "arguments": ',
    end="}",
    separator=", ",
    close="]</tool_calls>",
    trigger="<tool_calls>",
    special=frozenset({"<tool_calls>", "</tool_calls>"}),
)
FORMATS = (HUNYUAN_A13B,)
