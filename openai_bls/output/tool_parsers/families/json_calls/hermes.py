"""Hermes 2 Pro, Qwen2.5, Qwen3 and other models: a JSON object between tags.

Any number of times, between or after text::

<tool_call>
{"name": "get_weather", "arguments": {"city": "Paris"}}
</tool_call>
"""

from __future__ import annotations

from collections.abc import Callable

from openai_bls.output.tool_parsers import python_literals
from openai_bls.output.tool_parsers.formats import Sign, ToolFormat
from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import CallScanner, CharReader, Reader, string


class HermesReader(CallScanner):
    """Reads the object, also as Python writes it: from the first name in `'` on, values are Python's literals."""

    __slots__ = ("_python",)
    _QUOTES = "'\""

    def __init__(self) -> None:
        self._python = False
        super().__init__()

    def _quoted(self, char: str, add: Callable[[str], None]) -> Reader:
        if char == "'":
            self._python = True
            yield from string(add, "'", python_literals.CODES)
        else:
            yield from super()._quoted(char, add)

    def _value(self, char: str, out: list[str]) -> CharReader:
        if self._python:
            return (yield from python_literals.value(char, out, []))
        return (yield from super()._value(char, out))


SYNTAX = Syntax(lambda _: HermesReader(), begins=("<tool_call>",), ends=("</tool_call>",))
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
