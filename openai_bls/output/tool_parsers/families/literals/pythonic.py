"""Llama 3.2 and 4: a list of Python calls, whose literal arguments are converted to JSON.

As in::

[get_weather(city="Paris", days=2), stop()]
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Set

from openai_bls.output.tool_parsers.formats import NAME, Sign, ToolFormat, names_of
from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.python_literals import value
from openai_bls.output.tool_parsers.scanner import (
    SPACE,
    CallReader,
    MalformedError,
    Reader,
    after_space,
    expect,
)

_PYTHON_START = "<|python_start|>"
_PYTHON_END = "<|python_end|>"
_NO_NAME = frozenset("=()[]{}<>'\",:;" + SPACE)
NameReader = Generator[None, str, tuple[str, str]]
"""A coroutine that reads a name and what follows it."""


class PythonicReader(CallReader):
    """Reads the next call of a list at the beginning or after `<|python_start|>`. Since only its form identifies a
    call, it must have a tool's name.

    Arguments are Python's literals: strings without prefixes, numbers, `True`, `False`, `None`, lists and dicts with
    strings as keys; also as JSON. Strings are streamed. Anything else ends the call.
    """

    __slots__ = ("_follows", "_marked", "_names", "_scalar")

    def __init__(self, names: Set[str], *, marked: bool, follows: bool = False) -> None:
        self._names = names
        self._marked = marked
        self._follows = follows
        self._scalar: list[str] = []
        super().__init__()
        self.idle = follows

    def following(self) -> CallReader:
        """The next call."""
        return PythonicReader(self._names, marked=True, follows=True)

    def cut(self) -> None:
        """Add the incomplete value to the arguments."""
        self._arguments += self._scalar

    def _block(self) -> Reader:
        char = yield from after_space()
        if self._follows:
            if char == "]":
                return
            expect(char, ",")
        else:
            if char == "<" and not self._marked:
                yield from self._literal(_PYTHON_START, read="<")
                char = yield from after_space()
            expect(char, "[")
        char = yield from after_space()
        if char == "]" and self._follows:
            return
        self.idle = False
        name, char = yield from self._name(char, "(")
        if name not in self._names:
            raise MalformedError
        char = yield from after_space()
        while char != ")":
            key, char = yield from self._name(char, "=")
            char = yield from after_space()
            separator = ", " if self.ready else "{"
            self.name = name
            self._begin(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
            char = yield from value(char, self._arguments, self._scalar)
            if char == ",":
                char = yield from after_space()
            else:
                expect(char, ")")
        if not self.ready:
            self.name = name
            self._begin("{")
        self._arguments.append("}")

    def _name(self, char: str, end: str) -> NameReader:
        """Read the rest of a name, up to `end`."""
        name: list[str] = []
        while char not in _NO_NAME:
            name.append(char)
            char = yield
        if char in SPACE:
            char = yield from after_space()
        expect(char if name else "", end)
        return "".join(name), char


def pythonic(names: Iterable[str]) -> Syntax:
    """Syntax of Llama 3.2 and 4; `names` are those of the request's tools."""
    known = frozenset(names)
    return Syntax(
        lambda marker: PythonicReader(known, marked=bool(marker)),
        begins=(_PYTHON_START,),
        closers=(_PYTHON_END,),
        at_start=True,
    )


FORMATS = (
    ToolFormat(
        "pythonic",
        lambda tools: pythonic(names_of(tools)),
        signs=(Sign(("[func_name1(",)),),
        open="[",
        begin=f"{NAME}(",
        end=")",
        separator=", ",
        close="]",
        trigger="[",
        special=frozenset({_PYTHON_START, _PYTHON_END}),
        style="pythonic",
        only_at_start=(f" [ {NAME} (", f" {_PYTHON_START}"),
    ),
)
