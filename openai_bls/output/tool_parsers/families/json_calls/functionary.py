"""Functionary 3.1, and prompts of Llama 3.1 that ask for its form: JSON in a tag that has the name.

As in::

<function=get_weather>{"city": "Paris"}</function>
"""

from __future__ import annotations

from openai_bls.output.tool_parsers.formats import NAME, Sign, ToolFormat
from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import CallReader, Reader, after_space, expect, structure

_BEGIN, _END = "<function=", "</function>"
# What begins an argument of Qwen3-Coder's form, and what no name holds.
_NO_NAME = "<\n{"


class FunctionaryReader(CallReader):
    """Reads a name and the arguments."""

    __slots__ = ()

    def _block(self) -> Reader:
        name = ""
        while (char := (yield)) not in _NO_NAME and char != ">":
            name += char
        expect(char if name.strip() else "", ">")
        expect((yield from after_space()), "{")
        self.name = name.strip()
        self._begin("{")
        yield from structure(self._arguments)


SYNTAX = Syntax(lambda _: FunctionaryReader(), begins=(_BEGIN,), ends=(_END,))
FORMATS = (
    ToolFormat(
        "functionary_v31",
        lambda _: SYNTAX,
        signs=(Sign((_BEGIN, _END), lacks=("<parameter=", "<tool_call>")),),
        begin=f"{_BEGIN}{NAME}>",
        end=_END,
        separator="",
        trigger=_BEGIN,
    ),
)
