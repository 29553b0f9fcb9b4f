"""Tool-call readers of Llama 3, Mistral and DeepSeek."""

from __future__ import annotations

from collections.abc import Iterable, Set

from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import (
    SPACE,
    CallReader,
    CallScanner,
    MalformedError,
    Reader,
    after_space,
    expect,
    structure,
)

PYTHON_TAG = "<|python_tag|>"
TOOL_CALLS = "[TOOL_CALLS]"
CALL_ID = "[CALL_ID]"
ARGS = "[ARGS]"
CALLS_BEGIN = "<｜tool▁calls▁begin｜>"
CALLS_END = "<｜tool▁calls▁end｜>"
CALL_BEGIN = "<｜tool▁call▁begin｜>"
CALL_END = "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"


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


class MistralReader(CallScanner):
    """Reads the text after `[TOOL_CALLS]`: a JSON list of calls, or one call `name[CALL_ID]id[ARGS]{...}`, in which
    the id or both markers may be missing. The model's ids are not used: it repeats them from turn to turn."""

    __slots__ = ("_in_list",)

    def __init__(self, *, in_list: bool = False) -> None:
        self._in_list = in_list
        super().__init__()
        self.idle = in_list

    def _block(self) -> Reader:
        char = yield from after_space()
        if self._in_list:
            if char == "]":
                return
            expect(char, ",")
            expect((yield from after_space()), "{")
            self.idle = False
            yield from self._members()
        elif char == "{":
            yield from self._members()
        elif char == "[":
            # It may begin the next marker.
            self.put_back = char
            char = yield
            if char in SPACE:
                self.put_back = ""
                char = yield from after_space()
            expect(char, "{")
            self.put_back = ""
            self._in_list = True
            yield from self._members()
        else:
            yield from self._named(char)

    def _named(self, char: str) -> Reader:
        name: list[str] = []
        while char not in "[{" + SPACE:
            name.append(char)
            char = yield
        if char in SPACE:
            char = yield from after_space()
        if char == "[":
            if (yield from self._literal(CALL_ID, ARGS, read="[")) == CALL_ID:
                while (char := (yield)) != "[":
                    if not char.isalnum():
                        raise MalformedError
                yield from self._literal(ARGS, read="[")
            char = yield from after_space()
        expect(char, "{")
        self.name = "".join(name)
        self._begin(char)
        yield from structure(self._arguments)

    def following(self) -> CallReader | None:
        """The next call of a list."""
        return MistralReader(in_list=True) if self._in_list else None


MISTRAL = Syntax(lambda _: MistralReader(), begins=(TOOL_CALLS,))


class DeepSeekReader(CallReader):
    """Reads `function<｜tool▁sep｜>NAME`, a line break and the arguments in a Markdown fence (DeepSeek-V3 and R1), or
    `NAME<｜tool▁sep｜>` and the arguments (V3.1)."""

    __slots__ = ("_outer",)

    def __init__(self, marker: str) -> None:
        self._outer = marker == CALLS_BEGIN
        super().__init__()

    def _block(self) -> Reader:
        name = yield from self._head(SEPARATOR, begin=CALL_BEGIN if self._outer else "")
        char = yield from after_space()
        if char != "{":
            line: list[str] = []
            while char not in "\n`{<":
                line.append(char)
                char = yield
            name = "".join(line)
            if char == "\n":
                char = yield from after_space()
        fenced = char == "`"
        if fenced:
            yield from self._literal("```", read="`")
            while (char := (yield)).isalnum():
                pass
            if char in SPACE:
                char = yield from after_space()
        name = name.strip()
        expect(char if name else "", "{")
        self.name = name
        self._begin(char)
        yield from structure(self._arguments)
        if fenced:
            expect((yield from after_space()), "`")
            yield from self._literal("```", read="`")


DEEPSEEK = Syntax(DeepSeekReader, begins=(CALLS_BEGIN, CALL_BEGIN), ends=(CALL_END, CALLS_END), closers=(CALLS_END,))
