"""Kimi K3: a block of calls after the answer; each argument is plain text between markers that say its type.

As in::

<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>
<|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|>
<|close|>call<|sep|><|close|>tools<|sep|>

without line breaks.
"""

from __future__ import annotations

from openai_bls.output.tool_parsers.formats import NAME, Sign, ToolFormat
from openai_bls.output.tool_parsers.kinds import ALL_TYPES, Kind, ToolSchema, schemas_of
from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import CallReader, CharReader, Reader, after_space, expect, structure
from openai_bls.output.tool_parsers.xml import KeyReader, Schemas, XmlReader

_OPEN, _CLOSE, _SEP = "<|open|>", "<|close|>", "<|sep|>"
_TOOLS, _END_TOOLS = f"{_OPEN}tools{_SEP}", f"{_CLOSE}tools{_SEP}"
_END_RESPONSE, _END_MESSAGE = f"{_CLOSE}response{_SEP}", f"{_CLOSE}message{_SEP}"
_CALL, _END_CALL = f'{_OPEN}call tool="', f"{_CLOSE}call{_SEP}"
_ARGUMENT, _END_ARGUMENT = f'{_OPEN}argument key="', f"{_CLOSE}argument{_SEP}"
_JSON, _END_JSON = f'{_OPEN}json type="object"{_SEP}', f"{_CLOSE}json{_SEP}"
_STRING = Kind(frozenset({"string"}))
_NO_STRING = Kind(ALL_TYPES - {"string"})


class KimiK3Reader(XmlReader):
    """Reads the next call of a block, or the block's end. The values are verbatim; quotes in names are escaped."""

    __slots__ = ("_follows",)

    def __init__(self, schemas: Schemas, *, follows: bool = False) -> None:
        self._follows = follows
        super().__init__(schemas, ends=(_END_ARGUMENT,))
        self.idle = follows

    def _block(self) -> Reader:
        expect((yield from after_space()), "<")
        if (yield from self._literal(_CALL, *([_END_TOOLS] if self._follows else []), read="<")) == _END_TOOLS:
            return
        self.idle = False
        name = yield from self._attribute()
        char = yield
        if char == " ":
            yield from self._literal('index="')
            yield from self._attribute()
            char = yield
        expect(char, "<")
        yield from self._literal(_SEP, read="<")
        expect((yield from after_space()), "<")
        tag = yield from self._literal(_ARGUMENT, _END_CALL, _JSON, read="<")
        if tag != _JSON:
            yield from self._call(name, _ARGUMENT, _END_CALL, tag)
            return
        expect((yield from after_space()), "{")
        self.name = name
        self._begin("{")
        yield from structure(self._arguments)
        for end in (_END_JSON, _END_CALL):
            expect((yield from after_space()), "<")
            yield from self._literal(end, read="<")

    def _attribute(self) -> CharReader:
        """Read the rest of an attribute's value and the quote after it."""
        value = ""
        while (char := (yield)) not in '"<':
            value += char
        expect(char if value else "", '"')
        return value.replace("&quot;", '"').replace("&amp;", "&")

    def _key(self, schema: ToolSchema) -> KeyReader:
        key = yield from self._attribute()
        yield from self._literal(' type="')
        kind = yield from self._attribute()
        yield from self._literal(_SEP)
        return key, _STRING if kind == "string" else _NO_STRING

    def following(self) -> CallReader:
        """The next call."""
        return KimiK3Reader(self._schemas, follows=True)


def kimi_k3(schemas: Schemas) -> Syntax:
    """Syntax of Kimi K3."""
    return Syntax(
        lambda _: KimiK3Reader(schemas),
        begins=(_TOOLS,),
        closers=(_END_TOOLS,),
        dropped=(_END_RESPONSE, _END_MESSAGE),
    )


FORMATS = (
    ToolFormat(
        "kimi_k3",
        lambda tools: kimi_k3(schemas_of(tools)),
        signs=(Sign((_OPEN, _CLOSE, _SEP, "tools", "argument")),),
        # The answer before it, if only an empty one, has its end.
        open=f"{_END_RESPONSE}{_TOOLS}",
        begin=f'{_CALL}{NAME}" index="',
        call_id=("[1-9][0-9]{0,3}", f'"{_SEP}'),
        end=_END_CALL,
        separator="",
        close=_END_TOOLS,
        trigger=f"{_END_RESPONSE}{_TOOLS}",
        excludes=(_TOOLS,),
        special=frozenset({_OPEN, _CLOSE, _SEP}),
        style="kimi_k3",
    ),
)
