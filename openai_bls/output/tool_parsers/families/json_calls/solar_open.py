"""Solar Open: an id, a name and JSON between markers, in a message of calls.

As in::

<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>stop<|tool_call:args|>{}<|tool_call:end|><|calls|>
"""

from __future__ import annotations

from openai_bls.output.tool_parsers.formats import NAME, Sign, ToolFormat
from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import CallReader, Reader, after_space, expect, structure

_CALLS, _END_CALLS = "<|tool_calls|>", "<|calls|>"
_BEGIN, _NAME, _ARGUMENTS, _END = (f"<|tool_call:{part}|>" for part in ("begin", "name", "args", "end"))


class SolarReader(CallReader):
    """Reads the id, the name and the arguments. Later prompts repeat the id with the result."""

    __slots__ = ("_outer",)

    def __init__(self, marker: str) -> None:
        self._outer = marker == _CALLS
        super().__init__()

    def _block(self) -> Reader:
        call_id = yield from self._head(_NAME, begin=_BEGIN if self._outer else "")
        name = yield from self._head(_ARGUMENTS)
        expect((yield from after_space()), "{" if name.strip() else "")
        self.id, self.name = call_id.strip(), name.strip()
        self._begin("{")
        yield from structure(self._arguments)


SYNTAX = Syntax(SolarReader, begins=(_CALLS, _BEGIN), ends=(_END,), closers=(_END_CALLS,))
FORMATS = (
    ToolFormat(
        "solar_open",
        lambda _: SYNTAX,
        signs=(Sign((_BEGIN, _NAME, _ARGUMENTS)),),
        open=_CALLS,
        begin=_BEGIN,
        call_id=("[a-z0-9]{10}", f"{_NAME}{NAME}{_ARGUMENTS}"),
        end=_END,
        separator="",
        close=_END_CALLS,
        trigger=_CALLS,
        excludes=(_BEGIN,),
        special=frozenset({_CALLS, _END_CALLS, _BEGIN, _NAME, _ARGUMENTS, _END}),
    ),
)
