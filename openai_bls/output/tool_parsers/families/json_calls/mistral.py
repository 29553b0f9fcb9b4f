"""Mistral: a JSON list of calls after `[TOOL_CALLS]` up to v7; from v11 on a name and its arguments after each."""

from __future__ import annotations

import secrets
import string

from openai_bls.output.tool_parsers.formats import NAME, Sign, ToolFormat
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

TOOL_CALLS, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_ALPHANUMERIC = string.ascii_letters + string.digits


def short_call_id() -> str:
    """Nine random letters and digits: Mistral's templates take no other ids."""
    return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))


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


SYNTAX = Syntax(lambda _: MistralReader(), begins=(TOOL_CALLS,))
MISTRAL = ToolFormat(
    "mistral",
    lambda _: SYNTAX,
    signs=(Sign((f"{TOOL_CALLS} [",)),),
    open=f"{TOOL_CALLS} [",
    begin='{"name": "{name}", "arguments": ',
    end="}",
    separator=", ",
    close="]",
    trigger=TOOL_CALLS,
    special=frozenset({TOOL_CALLS, CALL_ID, ARGS}),
    new_id=short_call_id,
)
_TEKKEN = MISTRAL._replace(name="mistral_tekken", signs=(Sign((TOOL_CALLS,)),), open=f"{TOOL_CALLS}[")
_V13 = MISTRAL._replace(
    name="mistral_v13",
    signs=(Sign((TOOL_CALLS, ARGS)),),
    open="",
    begin=f"{TOOL_CALLS}{NAME}{ARGS}",
    end="",
    separator="",
    close="",
)
_V11 = _V13._replace(
    name="mistral_v11",
    signs=(Sign((TOOL_CALLS, CALL_ID, ARGS)),),
    begin=f"{TOOL_CALLS}{NAME}{CALL_ID}",
    call_id=("[a-zA-Z0-9]{9}", ARGS),
)
FORMATS = (_V11, _V13, MISTRAL, _TEKKEN)
