"""Tool-call readers of Kimi K2, and of models that write JSON calls in one block (Granite, Hunyuan, MiniMax-M1)."""

from __future__ import annotations

from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import (
    CallReader,
    CallScanner,
    MalformedError,
    Reader,
    after_space,
    expect,
    structure,
)

SECTION_BEGIN = "<|tool_calls_section_begin|>"
SECTION_END = "<|tool_calls_section_end|>"
KIMI_CALL_BEGIN = "<|tool_call_begin|>"
KIMI_CALL_END = "<|tool_call_end|>"
ARGUMENT_BEGIN = "<|tool_call_argument_begin|>"
FUNCTIONS = "functions."
KIMI_MARKERS = frozenset({SECTION_BEGIN, SECTION_END, KIMI_CALL_BEGIN, KIMI_CALL_END, ARGUMENT_BEGIN})


class KimiReader(CallReader):
    """Reads `functions.NAME:INDEX<|tool_call_argument_begin|>` and the arguments. What precedes the marker is the
    call's id: later prompts repeat it with the result."""

    __slots__ = ("_outer",)

    def __init__(self, marker: str) -> None:
        self._outer = marker == SECTION_BEGIN
        super().__init__()

    def _block(self) -> Reader:
        head = yield from self._head(ARGUMENT_BEGIN, begin=KIMI_CALL_BEGIN if self._outer else "")
        char = yield from after_space()
        call_id = head.strip()
        name, _, index = call_id.rpartition(":")
        name = name.removeprefix(FUNCTIONS)
        if not name or not (index.isascii() and index.isdigit()):
            raise MalformedError
        expect(char, "{")
        self.id = call_id
        self.name = name
        self._begin(char)
        yield from structure(self._arguments)


KIMI_K2 = Syntax(
    KimiReader, begins=(SECTION_BEGIN, KIMI_CALL_BEGIN), ends=(KIMI_CALL_END, SECTION_END), closers=(SECTION_END,)
)


class ListReader(CallScanner):
    """Reads the next call of a block: JSON objects one after another, as a list or without brackets and commas."""

    __slots__ = ("_follows", "_in_list")

    def __init__(self, *, follows: bool = False, in_list: bool = False) -> None:
        self._follows = follows
        self._in_list = in_list
        super().__init__()
        self.idle = follows

    def _block(self) -> Reader:
        char = yield from after_space()
        if self._follows:
            if char == "]" and self._in_list:
                return
            if char == ",":
                char = yield from after_space()
        elif char == "[":
            self._in_list = True
            char = yield from after_space()
        expect(char, "{")
        self.idle = False
        yield from self._members()

    def following(self) -> CallReader:
        """The next call."""
        return ListReader(follows=True, in_list=self._in_list)


GRANITE = Syntax(lambda _: ListReader(), begins=("<|tool_call|>", "<tool_call>"), closers=("</tool_call>",))
TOOL_CALLS_BLOCK = Syntax(lambda _: ListReader(), begins=("<tool_calls>",), closers=("</tool_calls>",))
