"""GigaChat 3 and 3.1: a JSON object after a marker, in 3 in a message whose role is `function call`.

As in::

<|message_sep|>

function call<|role_sep|>
{"name": "get_weather", "arguments": {"city": "Paris"}}
<|function_call|>{"name": "get_weather", "arguments": {"city": "Paris"}}
"""

from __future__ import annotations

from openai_bls.output.tool_parsers.formats import Sign, ToolFormat
from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import CallScanner

_ROLE, _CALL, _END = "function call<|role_sep|>", "<|function_call|>", "<|message_sep|>"
SYNTAX = Syntax(lambda _: CallScanner(), begins=(_ROLE, _CALL), dropped=(_END,))
_V3 = ToolFormat(
    "gigachat3",
    lambda _: SYNTAX,
    signs=(Sign((_END, "function call", "<|role_sep|>"), lacks=(_CALL,)),),
    begin=f'{_END}\n\n{_ROLE}\n{{"name": "{{name}}", "arguments": ',
    end="}",
    separator="",
    trigger=f"{_END}\n\n{_ROLE}",
    excludes=(_ROLE, _CALL),
    # Of some tokenizers' tokens the line breaks are a part.
    special=frozenset({_END, f"{_END}\n\n", "<|role_sep|>", "<|role_sep|>\n"}),
)
_V31 = _V3._replace(
    name="gigachat31",
    signs=(Sign((_CALL, _END, "<|role_sep|>")),),
    begin=f'{_CALL}{{"name": "{{name}}", "arguments": ',
    trigger=_CALL,
    excludes=(_ROLE,),
    special=frozenset({_CALL}),
)
FORMATS = (_V3, _V31)
