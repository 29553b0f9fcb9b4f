"""Hy3: GLM's arguments in a block of calls, with a marker after the name.

The preview has no `:opensource` in its tags::

<tool_calls:opensource>
<tool_call:opensource>get_weather<tool_sep:opensource>
<arg_key:opensource>city</arg_key:opensource>
<arg_value:opensource>Paris</arg_value:opensource>
</tool_call:opensource>
</tool_calls:opensource>
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from openai_bls.output.tool_parsers.formats import NAME, Sign, ToolFormat
from openai_bls.output.tool_parsers.kinds import ToolSchema, schemas_of
from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import Reader, after_space, expect
from openai_bls.output.tool_parsers.xml import KeyReader, Schemas, XmlReader


class HyTags(NamedTuple):
    """The tags of a block of calls."""

    block: str
    end_block: str
    call: str
    end_call: str
    separator: str
    key: str
    end_key: str
    value: str
    end_value: str


def hy_tags(suffix: str) -> HyTags:
    """The tags with a suffix."""
    pairs = [
        (f"<{name}{suffix}>", f"</{name}{suffix}>") for name in ("tool_calls", "tool_call", "arg_key", "arg_value")
    ]
    block, call, key, value = pairs
    return HyTags(*block, *call, f"<tool_sep{suffix}>", *key, *value)


class HyReader(XmlReader):
    """Reads a call, with the tag that begins it if the block has begun. The values are verbatim."""

    __slots__ = ("_outer", "_tags")

    def __init__(self, tags: HyTags, marker: str, schemas: Schemas) -> None:
        self._tags = tags
        self._outer = marker == tags.block
        super().__init__(schemas, ends=(tags.end_value,))

    def _block(self) -> Reader:
        if self._outer:
            expect((yield from after_space()), "<")
            yield from self._literal(self._tags.call, read="<")
        name = yield from self._name_up_to(self._tags.separator)
        yield from self._call(name, self._tags.key, self._tags.end_call)

    def _key(self, schema: ToolSchema) -> KeyReader:
        key = yield from self._name_up_to(self._tags.end_key)
        expect((yield from after_space()), "<")
        yield from self._literal(self._tags.value, read="<")
        return key, schema.property_kind(key)


def hy_v3(tags: HyTags, schemas: Schemas) -> Syntax:
    """Syntax of Hy3 with such tags."""
    return Syntax(
        lambda marker: HyReader(tags, marker, schemas), begins=(tags.block, tags.call), closers=(tags.end_block,)
    )


def _format(name: str, tags: HyTags, style: str, sign: Sign) -> ToolFormat:
    def syntax(tools: Sequence[dict[str, Any]]) -> Syntax:
        return hy_v3(tags, schemas_of(tools))

    return ToolFormat(
        name,
        syntax,
        signs=(sign,),
        open=f"{tags.block}\n",
        # The grammar of the arguments has the line breaks around them.
        begin=f"{tags.call}{NAME}{tags.separator}",
        end=f"{tags.end_call}\n",
        separator="",
        close=tags.end_block,
        trigger=tags.block,
        excludes=(tags.call,),
        special=frozenset(tags),
        style=style,
    )


FORMATS = (
    _format("hy_v3", hy_tags(":opensource"), "hy_xml", Sign(("<tool_calls{}>", "<tool_sep{}>", ":opensource"))),
    _format("hy_v3_preview", hy_tags(""), "glm_xml", Sign(("<tool_calls>", "<tool_sep>", "<arg_key>"))),
)
