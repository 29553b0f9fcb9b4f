"""Kimi K2: `functions.NAME:INDEX`, which is the call's id, and the arguments, between markers."""

from __future__ import annotations

from openai_bls.output.tool_parsers.formats import NAME, Sign, ToolFormat
from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import CallReader, MalformedError, Reader, after_space, expect, structure

_SECTION_BEGIN = "<|tool_calls_section_begin|>"
_SECTION_END = "<|tool_calls_section_end|>"
# As it is written now and then.
_SINGULAR_BEGIN, _SINGULAR_END = "<|tool_call_section_begin|>", "<|tool_call_section_end|>"
_CALL_BEGIN = "<|tool_call_begin|>"
_CALL_END = "<|tool_call_end|>"
_ARGUMENT_BEGIN = "<|tool_call_argument_begin|>"
_FUNCTIONS = "functions."


class KimiReader(CallReader):
    """Reads `functions.NAME:INDEX<|tool_call_argument_begin|>` and the arguments. What precedes the marker is the
    call's id: later prompts repeat it with the result."""

    __slots__ = ("_outer",)

    def __init__(self, marker: str) -> None:
        self._outer = marker != _CALL_BEGIN
        super().__init__()

    def _block(self) -> Reader:
        head = yield from self._head(_ARGUMENT_BEGIN, begin=_CALL_BEGIN if self._outer else "")
        char = yield from after_space()
        call_id = head.strip()
        name, _, index = call_id.rpartition(":")
        name = name.removeprefix(_FUNCTIONS)
        if not name or not (index.isascii() and index.isdigit()):
            raise MalformedError
        expect(char, "{")
        self.id = call_id
        self.name = name
        self._begin(char)
        yield from structure(self._arguments)


SYNTAX = Syntax(
    KimiReader,
    begins=(_SECTION_BEGIN, _SINGULAR_BEGIN, _CALL_BEGIN),
    ends=(_CALL_END, _SECTION_END, _SINGULAR_END),
    closers=(_SECTION_END, _SINGULAR_END),
)
FORMATS = (
    ToolFormat(
        "kimi_k2",
        lambda _: SYNTAX,
        signs=(Sign((_SECTION_BEGIN, _ARGUMENT_BEGIN)),),
        open=_SECTION_BEGIN,
        begin=f"{_CALL_BEGIN}{_FUNCTIONS}{NAME}:",
        end=_CALL_END,
        separator="",
        close=_SECTION_END,
        trigger=_SECTION_BEGIN,
        excludes=(_SINGULAR_BEGIN, _CALL_BEGIN),
        special=frozenset({_SECTION_BEGIN, _SECTION_END, _CALL_BEGIN, _CALL_END, _ARGUMENT_BEGIN}),
        call_id=("[0-9]{1,4}", _ARGUMENT_BEGIN),
    ),
)
