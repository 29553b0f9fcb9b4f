"""Llama 3.1 to 3.3: a JSON object as the whole answer, or several, also after a marker."""

from __future__ import annotations

from collections.abc import Iterable, Set

from openai_bls.output.tool_parsers.formats import Sign, ToolFormat, names_of
from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import CallReader, CallScanner, Reader, after_space, expect

PYTHON_TAG = "<|python_tag|>"


class LlamaReader(CallScanner):
    """Reads `{"name": ..., "parameters": ...}` at the beginning or after `<|python_tag|>`; more calls may follow, with
    or without a semicolon. Since only its form identifies a call, it must have a tool's name."""

    __slots__ = ("_marked",)

    def __init__(self, names: Set[str], *, marked: bool, follows: bool = False) -> None:
        self._names: Set[str]
        self._marked = marked
        super().__init__(names)
        self.idle = follows

    def _block(self) -> Reader:
        char = yield from after_space()
        if char == ";" and self.idle:
            char = yield from after_space()
        if char == "<" and not self._marked:
            yield from self._literal(PYTHON_TAG, read="<")
            self.idle = False
            char = yield from after_space()
        expect(char, "{")
        self.idle = False
        yield from self._members()

    def following(self) -> CallReader:
        """The next call."""
        return LlamaReader(self._names, marked=False, follows=True)


def llama3_json(names: Iterable[str]) -> Syntax:
    """Syntax of Llama 3.1 and later; `names` are those of the request's tools."""
    known = frozenset(names)
    return Syntax(lambda marker: LlamaReader(known, marked=bool(marker)), begins=(PYTHON_TAG,), at_start=True)


FORMATS = (
    ToolFormat(
        "llama3_json",
        lambda tools: llama3_json(names_of(tools)),
        signs=(
            Sign((PYTHON_TAG, '"parameters": ')),
            Sign(("<|start_header_id|>", '{"name": ', '"parameters": ')),
        ),
        begin='{"name": "{name}", "parameters": ',
        end="}",
        trigger='{"name"',
        separator="; ",
        special=frozenset({PYTHON_TAG}),
        only_at_start=(' { "name"', ' { "type" : "function"', f" {PYTHON_TAG}"),
    ),
)
