"""GLM-4.5 and later: the names and values of arguments between tags.

4.7 leaves out the line breaks::

<tool_call>get_weather
<arg_key>city</arg_key>
<arg_value>Paris</arg_value>
</tool_call>
"""

from __future__ import annotations

from openai_bls.output.tool_parsers.formats import NAME, Sign, ToolFormat
from openai_bls.output.tool_parsers.kinds import ToolSchema, schemas_of
from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import SPACE, MalformedError, Reader, after_space, expect
from openai_bls.output.tool_parsers.xml import KeyReader, Schemas, XmlReader

_TAGS = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_BEGIN, _END, _KEY, _END_KEY, _VALUE, _END_VALUE = _TAGS
# What cannot be in a function's name, but begins other forms of calls.
_NO_NAME = '{}[]">'


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

    def _key(self, schema: ToolSchema) -> KeyReader:
        key = yield from self._name_up_to(_END_KEY)
        expect((yield from after_space()), "<")
        yield from self._literal(_VALUE, read="<")
        return key, schema.property_kind(key)


def glm(schemas: Schemas) -> Syntax:
    """Syntax of GLM-4.5 and later."""
    return Syntax(lambda _: GlmReader(schemas), begins=(_BEGIN,))


FORMATS = (
    ToolFormat(
        "glm",
        lambda tools: glm(schemas_of(tools)),
        signs=(Sign((_BEGIN, _KEY, _VALUE)),),
        # The grammar of the arguments has the line breaks around them.
        begin=f"{_BEGIN}{NAME}",
        end=_END,
        trigger=_BEGIN,
        special=frozenset(_TAGS),
        style="glm_xml",
    ),
)
