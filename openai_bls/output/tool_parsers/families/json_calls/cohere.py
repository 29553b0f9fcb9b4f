"""Command R7B and Command A: a JSON list of calls between markers, each with its number and a `tool_name`.

As in::

<|START_ACTION|>[
    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}},
    {"tool_call_id": "1", "tool_name": "stop", "parameters": {}}
]<|END_ACTION|>
"""

from __future__ import annotations

from openai_bls.output.tool_parsers.formats import NAME, Sign, ToolFormat
from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import ListReader

_BEGIN, _END = "<|START_ACTION|>", "<|END_ACTION|>"


class CohereReader(ListReader):
    """Reads the next call of the list. The model's ids are not used: templates number the calls of later prompts."""

    __slots__ = ()
    _NAME_KEYS = ("tool_name", "name")


SYNTAX = Syntax(lambda _: CohereReader(), begins=(_BEGIN,), closers=(_END,))
FORMATS = (
    ToolFormat(
        "cohere_command",
        lambda _: SYNTAX,
        signs=(Sign((_BEGIN, _END, "tool_name")),),
        open=f"{_BEGIN}[\n    ",
        begin='{"tool_call_id": "',
        call_id=("[0-9]{1,4}", f'", "tool_name": "{NAME}", "parameters": '),
        end="}",
        separator=",\n    ",
        close=f"\n]{_END}",
        trigger=_BEGIN,
        special=frozenset({_BEGIN, _END}),
    ),
)
