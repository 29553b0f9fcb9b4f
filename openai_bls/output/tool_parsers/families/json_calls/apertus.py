"""Apertus: a JSON list of objects between markers, each with a function's name and its arguments.

As in::

<|tools_prefix|>[{"get_weather": {"city": "Paris"}}, {"stop": {}}]<|tools_suffix|>
"""

from __future__ import annotations

from openai_bls.output.tool_parsers.formats import NAME, Sign, ToolFormat
from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import ListReader, Reader, after_space, expect, string, structure

_BEGIN, _END = "<|tools_prefix|>", "<|tools_suffix|>"


class ApertusReader(ListReader):
    """Reads the next call of the list."""

    __slots__ = ()

    def _members(self) -> Reader:
        expect((yield from after_space()), '"')
        name: list[str] = []
        yield from string(name.append)
        expect((yield from after_space()), ":")
        expect((yield from after_space()), "{" if name else "")
        self.name = "".join(name)
        self._begin("{")
        yield from structure(self._arguments)
        expect((yield from after_space()), "}")


SYNTAX = Syntax(lambda _: ApertusReader(), begins=(_BEGIN,), closers=(_END,))
FORMATS = (
    ToolFormat(
        "apertus",
        lambda _: SYNTAX,
        signs=(Sign((_BEGIN, _END)),),
        open=f"{_BEGIN}[",
        begin=f'{{"{NAME}": ',
        end="}",
        separator=", ",
        close=f"]{_END}",
        trigger=_BEGIN,
        special=frozenset({_BEGIN, _END}),
    ),
)
