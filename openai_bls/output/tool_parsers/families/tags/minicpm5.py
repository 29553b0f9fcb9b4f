"""MiniCPM 5: each argument is plain text in a tag, or in a CDATA section; the tool's schema says its type.

As in::

<function name="get_weather"><param name="city">Paris</param><param name="note"><![CDATA[a < b]]></param></function>
"""

from __future__ import annotations

from openai_bls.output.tool_parsers.formats import NAME, Sign, ToolFormat
from openai_bls.output.tool_parsers.kinds import ToolSchema, schemas_of
from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import CharReader, Reader
from openai_bls.output.tool_parsers.xml import KeyReader, Schemas, XmlReader

_FUNCTION, _END_FUNCTION = '<function name="', "</function>"
_PARAM, _END_PARAM = '<param name="', "</param>"
_CDATA, _END_CDATA = "<![CDATA[", "]]>"


class MiniCpmReader(XmlReader):
    """Reads the text after `<function name="`, up to `</function>`. The values are verbatim but for CDATA."""

    __slots__ = ()

    def __init__(self, schemas: Schemas) -> None:
        super().__init__(schemas, ends=(_END_PARAM,))

    def _block(self) -> Reader:
        name = yield from self._name_up_to('">')
        yield from self._call(name, _PARAM, _END_FUNCTION)

    def _key(self, schema: ToolSchema) -> KeyReader:
        key = yield from self._name_up_to('">')
        return key, schema.property_kind(key)

    def _read_value(self) -> CharReader:
        read = ""
        while read != _CDATA and _CDATA.startswith(read):
            read += yield
        if read == _CDATA:
            return (yield from self._value_up_to((f"{_END_CDATA}{_END_PARAM}",)))
        return (yield from self._value_up_to(self._ends, read))


def minicpm5(schemas: Schemas) -> Syntax:
    """Syntax of MiniCPM 5."""
    return Syntax(lambda _: MiniCpmReader(schemas), begins=(_FUNCTION,))


FORMATS = (
    ToolFormat(
        "minicpm5",
        lambda tools: minicpm5(schemas_of(tools)),
        signs=(Sign((_FUNCTION, _PARAM, "CDATA")),),
        begin=f'{_FUNCTION}{NAME}">',
        end=_END_FUNCTION,
        separator="\n",
        trigger=_FUNCTION,
        style="minicpm_xml",
    ),
)
