"""Hermes 2 Pro, Qwen2.5, Qwen3 and other models: a JSON object between tags.

Any number of times, between or after text::

<tool_call>
{"name": "get_weather", "arguments": {"city": "Paris"}}
</tool_call>
"""

from __future__ import annotations

from openai_bls.output.tool_parsers.formats import Sign, ToolFormat
from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import CallScanner

SYNTAX = Syntax(lambda _: CallScanner(), begins=("<tool_call>",), ends=("</tool_call>",))
HERMES = ToolFormat(
    "hermes",
    lambda _: SYNTAX,
    signs=(Sign(("<tool_call>", "</tool_call>", "arguments"), lacks=("<arg_key>", "<function=")),),
    begin='<tool_call>\n{"name": "{name}", "arguments": ',
    end="}\n</tool_call>",
    trigger="<tool_call>",
    special=frozenset({"<tool_call>", "</tool_call>"}),
)
FORMATS = (HERMES,)
