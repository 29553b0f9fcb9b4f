"""Llama 3.1 to 3.3, and 4 with a template for it: a JSON object or several, at the beginning or behind text."""

from __future__ import annotations

from collections.abc import Iterable, Set

from openai_bls.output.tool_parsers.formats import NAME, Sign, ToolFormat, names_of
from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import (
    CallReader,
    CallScanner,
    MalformedError,
    Reader,
    after_space,
    expect,
)

PYTHON_TAG = "<|python_tag|>"
_IN_TEXT = '{"name": "'


class LlamaReader(CallScanner):
    """Reads `{"name": ..., "parameters": ...}` at the beginning, after `<|python_tag|>`, or behind text; more calls may
    follow, with or without a semicolon. Since only its form identifies a call, it must have a tool's name.

    Behind text a call is written as the template writes it, and the text may not be JSON, a part of which may look like
    a call.
    """

    __slots__ = ("_answer", "_marker")

    def __init__(self, names: Set[str], answer: _Answer, marker: str, *, follows: bool = False) -> None:
        self._names: Set[str]
        self._answer = answer
        self._marker = marker
        super().__init__(names)
        self.idle = follows

    def _block(self) -> Reader:
        if self._marker == _IN_TEXT:
            yield from self._behind_text()
            return
        char = yield from after_space()
        if char == ";" and self.idle:
            char = yield from after_space()
        if char == "<" and not self._marker:
            yield from self._literal(PYTHON_TAG, read="<")
            self.idle = False
            char = yield from after_space()
        if char in "{[" and not self._marker:
            self._answer.is_json = True
        expect(char, "{")
        self.idle = False
        yield from self._members()

    def _behind_text(self) -> Reader:
        name = ""
        while (char := (yield)) != '"':
            name += char
            if self._answer.is_json or not any(known.startswith(name) for known in self._names):
                raise MalformedError
        if name not in self._names:
            raise MalformedError
        self.name = name
        expect((yield from after_space()), ",")
        yield from self._members()

    def following(self) -> CallReader:
        """The next call."""
        return LlamaReader(self._names, self._answer, "", follows=True)


class _Answer:
    """State of one answer."""

    __slots__ = ("is_json",)

    def __init__(self) -> None:
        self.is_json = False


class _Readers:
    """Makes the readers of an answer, the first of which reads its beginning."""

    __slots__ = ("_answer", "_names")

    def __init__(self, names: Set[str]) -> None:
        self._names = names
        self._answer = _Answer()

    def __call__(self, marker: str) -> LlamaReader:
        if not marker:
            self._answer = _Answer()
        return LlamaReader(self._names, self._answer, marker)


def llama3_json(names: Iterable[str]) -> Syntax:
    """Syntax of one answer of Llama 3.1 and later; `names` are those of the request's tools."""
    return Syntax(_Readers(frozenset(names)), begins=(PYTHON_TAG, _IN_TEXT), at_start=True)


FORMATS = (
    ToolFormat(
        "llama3_json",
        lambda tools: llama3_json(names_of(tools)),
        signs=(
            Sign((PYTHON_TAG, '"parameters": ')),
            Sign(("<|start_header_id|>", '{"name": ', '"parameters": ')),
            # Llama 4's template for JSON
            Sign(("<|header_start|>", '{"name": ', '"parameters": ')),
        ),
        begin='{"name": "{name}", "parameters": ',
        end="}",
        trigger='{"name"',
        excludes=(f'{_IN_TEXT}{NAME}"',),
        separator="; ",
        special=frozenset({PYTHON_TAG}),
        only_at_start=(' { "name"', ' { "type" : "function"', f" {PYTHON_TAG}"),
    ),
)
