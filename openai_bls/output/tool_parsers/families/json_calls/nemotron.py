"""Nemotron Nano v2 and Llama-Nemotron: a JSON list of calls between `<TOOLCALL>` and `</TOOLCALL>`."""

from __future__ import annotations

from openai_bls.output.tool_parsers.families.json_calls.hunyuan import HUNYUAN_A13B
from openai_bls.output.tool_parsers.formats import Sign
from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import ListReader

_BEGIN, _END = "<TOOLCALL>", "</TOOLCALL>"
SYNTAX = Syntax(lambda _: ListReader(), begins=(_BEGIN,), closers=(_END,))
FORMATS = (
    HUNYUAN_A13B._replace(
        name="nemotron_json",
        syntax=lambda _: SYNTAX,
        signs=(Sign((f"{_BEGIN}[", "arguments")),),
        open=f"{_BEGIN}[",
        close=f"]{_END}",
        trigger=_BEGIN,
        special=frozenset({_BEGIN, _END}),
    ),
)
