"""Tool-call readers of GLM, MiniMax-M2 and DeepSeek-V3.2, which write arguments as XML.

A call of GLM-4.5 and later (4.7 leaves out the line breaks)::

    <tool_call>get_weather
    <arg_key>city</arg_key>
    <arg_value>Paris</arg_value>
    </tool_call>

MiniMax-M2 writes all calls in one block; DeepSeek-V3.2 does so with other tags, and says which values are strings::

    <minimax:tool_call>
    <invoke name="get_weather">
    <parameter name="city">Paris</parameter>
    </invoke>
    </minimax:tool_call>
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from openai_bls.output.tool_parsers.kinds import ALL_TYPES, Kind
from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import SPACE, CallReader, MalformedError, Reader, after_space, expect
from openai_bls.output.tool_parsers.xml import KeyReader, XmlReader

Schemas = Mapping[str, Mapping[str, Any]]

GLM_TAGS = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_BEGIN, _END, _KEY, _END_KEY, _VALUE, _END_VALUE = GLM_TAGS
# What cannot be in a function's name, but begins other forms of calls.
_NO_NAME = '{}[]">'
_STRING = Kind(frozenset({"string"}))
_NO_STRING = Kind(ALL_TYPES - {"string"})


class GlmReader(XmlReader):
    """Reads the text after `<tool_call>`, up to `</tool_call>`. The values are verbatim."""

    __slots__ = ()

    def __init__(self, schemas: Schemas) -> None:
        super().__init__(schemas, ends=(_END_VALUE,))

    def _block(self) -> Reader:
        char = yield from after_space()
        name = ""
        while char not in "<\n":
            if char in _NO_NAME:
                raise MalformedError
            name += char
            char = yield
        if char == "\n":
            char = yield from after_space()
        expect(char if name else "", "<")
        yield from self._call(name.strip(SPACE), _KEY, _END, read=char)

    def _key(self, schema: Mapping[str, Any]) -> KeyReader:
        key = yield from self._name_up_to(_END_KEY)
        expect((yield from after_space()), "<")
        yield from self._literal(_VALUE, read="<")
        return key, self._kind_of(schema, key)


def glm(schemas: Schemas) -> Syntax:
    """Syntax of GLM-4.5 and later."""
    return Syntax(lambda _: GlmReader(schemas), begins=(_BEGIN,))


class InvokeTags(NamedTuple):
    """The tags of a block of calls."""

    begin: str
    end: str
    call: str
    """Beginning of a call, up to the name."""
    end_call: str
    argument: str
    """Beginning of an argument, up to the name."""
    end_argument: str
    typed: bool = False
    """After the name there is `string="true"` or `string="false"`."""


MINIMAX_M2 = InvokeTags(
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    '<invoke name="',
    "</invoke>",
    '<parameter name="',
    "</parameter>",
)
DEEPSEEK_V32 = InvokeTags(
    "<｜DSML｜function_calls>",
    "</｜DSML｜function_calls>",
    '<｜DSML｜invoke name="',
    "</｜DSML｜invoke>",
    '<｜DSML｜parameter name="',
    "</｜DSML｜parameter>",
    typed=True,
)


class InvokeReader(XmlReader):
    """Reads the next call of a block, or the block's end. The values are verbatim."""

    __slots__ = ("_follows", "_tags")

    def __init__(self, tags: InvokeTags, schemas: Schemas, *, follows: bool = False) -> None:
        self._tags = tags
        self._follows = follows
        super().__init__(schemas, ends=(tags.end_argument,))
        self.idle = follows

    def _block(self) -> Reader:
        tags = self._tags
        expect((yield from after_space()), "<")
        if (yield from self._literal(tags.call, *([tags.end] if self._follows else []), read="<")) == tags.end:
            return
        self.idle = False
        name = yield from self._name_up_to('">')
        yield from self._call(name, tags.argument, tags.end_call)

    def _key(self, schema: Mapping[str, Any]) -> KeyReader:
        if not self._tags.typed:
            key = yield from self._name_up_to('">')
            return key, self._kind_of(schema, key)
        key = yield from self._name_up_to('" string="')
        string = yield from self._literal('true">', 'false">')
        return key, _STRING if string.startswith("true") else _NO_STRING

    def following(self) -> CallReader:
        """The next call."""
        return InvokeReader(self._tags, self._schemas, follows=True)


def invokes(tags: InvokeTags, schemas: Schemas) -> Syntax:
    """Syntax of MiniMax-M2 or DeepSeek-V3.2."""
    return Syntax(lambda _: InvokeReader(tags, schemas), begins=(tags.begin,), closers=(tags.end,))
