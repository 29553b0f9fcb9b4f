"""Granite 3: a JSON list of calls after a marker, of which there are two."""

from __future__ import annotations

from openai_bls.output.tool_parsers.formats import Sign, ToolFormat
from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import ListReader

SYNTAX = Syntax(lambda _: ListReader(), begins=("<|tool_call|>", "<tool_call>"), closers=("</tool_call>",))
FORMATS = (
    ToolFormat(
        "granite",
        lambda _: SYNTAX,
        signs=(Sign(("<|tool_call|>", "JSON list")),),
        open="<|tool_call|>[",
        begin='{"name": "{name}", "arguments": ',
        end="}",
        separator=", ",
        close="]",
        trigger="<|tool_call|>",
        excludes=("<tool_call>",),
        special=frozenset({"<|tool_call|>", "<tool_call>"}),
    ),
)
