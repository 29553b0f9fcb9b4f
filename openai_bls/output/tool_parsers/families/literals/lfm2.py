"""LFM2: a list of Python calls between markers.

As in::

<|tool_call_start|>[get_weather(city="Paris", days=2), stop()]<|tool_call_end|>
"""

from __future__ import annotations

from collections.abc import Iterable

from openai_bls.output.tool_parsers.families.literals.pythonic import PythonicReader
from openai_bls.output.tool_parsers.formats import NAME, Sign, ToolFormat, names_of
from openai_bls.output.tool_parsers.parser import Syntax

_BEGIN, _END = "<|tool_call_start|>", "<|tool_call_end|>"


def lfm2(names: Iterable[str]) -> Syntax:
    """Syntax of LFM2; `names` are those of the request's tools."""
    known = frozenset(names)
    return Syntax(lambda _: PythonicReader(known, marked=True), begins=(_BEGIN,), closers=(_END,))


FORMATS = (
    ToolFormat(
        "lfm2",
        lambda tools: lfm2(names_of(tools)),
        # Templates without calls of earlier turns tell it by how they list the tools.
        signs=(Sign((_BEGIN,)), Sign(("<|tool_list_start|>",)), Sign(("List of tools: [", "<|im_start|>"))),
        open=f"{_BEGIN}[",
        begin=f"{NAME}(",
        end=")",
        separator=", ",
        close=f"]{_END}",
        trigger=_BEGIN,
        special=frozenset({_BEGIN, _END}),
        style="pythonic",
    ),
)
