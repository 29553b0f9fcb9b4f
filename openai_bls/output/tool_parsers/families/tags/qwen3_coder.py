"""Qwen3-Coder, and Seed-OSS with another outer tag: each argument is plain text in a tag.

The tool's schema says its type::

<tool_call>
<function=get_weather>
<parameter=city>
Paris
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

from openai_bls.output.tool_parsers.formats import Sign, ToolFormat
from openai_bls.output.tool_parsers.kinds import ToolSchema, schemas_of
from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import Reader, after_space, expect
from openai_bls.output.tool_parsers.xml import KeyReader, Schemas, XmlReader

_FUNCTION = "<function="
_END_FUNCTION = "</function>"
_PARAMETER = "<parameter="
_END_PARAMETER = "</parameter>"
NEXT_TAGS = ("\n" + _PARAMETER, "\n" + _END_FUNCTION)
"""What ends a value where its own tag is missing."""


class QwenReader(XmlReader):
    """Reads the text after `<tool_call>`, up to `</function>`. One line break before a parameter's closing tag is not
    part of the value, either.

    Args:
        outer: the block began with `<tool_call>`, not `<function=`.
        schemas: the tools' `parameters` by name.
    """

    __slots__ = ("_outer",)

    def __init__(self, *, outer: bool, schemas: Schemas) -> None:
        self._outer = outer
        super().__init__(schemas, ends=("\n" + _END_PARAMETER, _END_PARAMETER, *NEXT_TAGS), padded=True)

    def _block(self) -> Reader:
        if self._outer:
            expect((yield from after_space()), "<")
            yield from self._literal(_FUNCTION, read="<")
        name = yield from self._name_up_to(">")
        yield from self._call(name, _PARAMETER, _END_FUNCTION)

    def _key(self, schema: ToolSchema) -> KeyReader:
        key = yield from self._name_up_to(">")
        return key, schema.property_kind(key)


def xml_calls(schemas: Schemas, outer: str = "tool_call") -> Syntax:
    """Syntax of Qwen3-Coder, and of Seed-OSS with another outer tag. The outer tag is optional."""
    return Syntax(
        lambda marker: QwenReader(outer=marker != _FUNCTION, schemas=schemas),
        begins=(f"<{outer}>", _FUNCTION),
        closers=(f"</{outer}>",),
    )


_QWEN3_CODER = ToolFormat(
    "qwen3_coder",
    lambda tools: xml_calls(schemas_of(tools)),
    signs=(Sign(("<tool_call>", _FUNCTION, _PARAMETER), lacks=("<arg_key>",)),),
    # The grammar of the parameters has the line breaks around them.
    begin="<tool_call>\n<function={name}>",
    end="</function>\n</tool_call>",
    trigger="<tool_call>",
    excludes=(_FUNCTION,),
    special=frozenset({"<tool_call>", "</tool_call>"}),
    style="qwen_xml",
)
_SEED_OSS = _QWEN3_CODER._replace(
    name="seed_oss",
    syntax=lambda tools: xml_calls(schemas_of(tools), "seed:tool_call"),
    signs=(Sign(("<seed:tool_call>", _FUNCTION)),),
    begin="<seed:tool_call>\n<function={name}>",
    end="</function>\n</seed:tool_call>",
    trigger="<seed:tool_call>",
    special=frozenset({"<seed:tool_call>", "</seed:tool_call>"}),
)
FORMATS = (_SEED_OSS, _QWEN3_CODER)
