"""MiniMax M3: each argument is a tag of its name, and so is each member of an object; all have a namespace before them.

As in::

]<]minimax[>[<tool_call>
]<]minimax[>[<invoke name="weather">]<]minimax[>[<city>Paris]<]minimax[>[</city>]<]minimax[>[<days>]<]minimax[>[<item>1
]<]minimax[>[</item>]<]minimax[>[</days>]<]minimax[>[</invoke>
]<]minimax[>[</tool_call>
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from openai_bls.output.tool_parsers.formats import NAME, Sign, ToolFormat
from openai_bls.output.tool_parsers.kinds import NO_SCHEMA, ToolSchema, as_json, schemas_of
from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import SPACE, CallReader, Reader, after_space, expect
from openai_bls.output.tool_parsers.xml import KeyReader, Schemas, XmlReader

_NS = "]<]minimax[>["
_TOOLS, _END_TOOLS = f"{_NS}<tool_call>", f"{_NS}</tool_call>"
_INVOKE, _END_INVOKE = f'{_NS}<invoke name="', f"{_NS}</invoke>"
_ITEM = "item"
_TAG = re.compile(r"\]<\]minimax\[>\[<(/?)([^<>\s]+)>")
_MAX_DEPTH = 64
_END_CALL = "/invoke"
_EMPTY = {"array": "[]", "object": "{}", "null": "null"}


class Element(NamedTuple):
    """A tag, all that stands in it, and the tags in it."""

    name: str
    text: str
    members: list[Element]


class M3Reader(XmlReader):
    """Reads the next call of a block, or the block's end. Strings are streamed; any other value, the tags of which may
    hold others, is sent when it is complete."""

    __slots__ = ("_follows",)

    def __init__(self, schemas: Schemas, *, follows: bool = False) -> None:
        self._follows = follows
        super().__init__(schemas, ends=())
        self.idle = follows

    def cut(self) -> None:
        """Add the incomplete value to the arguments, but for one of several tags."""
        if self._value is not None and _NS not in "".join(self._value):
            super().cut()

    def _block(self) -> Reader:
        expect((yield from after_space()), _NS[0])
        if (yield from self._literal(_INVOKE, *([_END_TOOLS] if self._follows else []), read=_NS[0])) == _END_TOOLS:
            return
        self.idle = False
        name = yield from self._name_up_to('">')
        schema = self._schemas.get(name, NO_SCHEMA)
        key, self._kind = yield from self._key(schema)
        self.name = name
        self._begin("{")
        separator = ""
        while key != _END_CALL:
            self._arguments.append(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
            separator = ", "
            if self._kind.is_text:
                yield from self._value_up_to((f"{_NS}</{key}>",))
            else:
                yield from self._element(key, schema)
            key, self._kind = yield from self._key(schema)
        self._arguments.append("}")

    def _key(self, schema: ToolSchema) -> KeyReader:
        expect((yield from after_space()), _NS[0])
        yield from self._literal(f"{_NS}<", read=_NS[0])
        key = ""
        while (char := (yield)) not in "<>" + SPACE:
            key += char
        expect(char if key == _END_CALL or key.strip("/") == key != "" else "", ">")
        return key, schema.property_kind(key)

    def _element(self, key: str, schema: ToolSchema) -> Reader:
        """Read a value up to its own end, whichever tags it holds."""
        begin, end = f"{_NS}<{key}>", f"{_NS}</{key}>"
        text: list[str] = []
        self._value = text
        depth, tail = 1, ""
        while depth:
            char = yield
            text.append(char)
            tail = (tail + char)[-len(end) :]
            if char == ">":
                depth += tail.endswith(begin) - (tail == end)
        self._value = None
        value = "".join(text)[: -len(end)]
        found = Element(key, value, _members(value))
        self._arguments.append(_as_json(schema, schema.argument(key), found))

    def following(self) -> CallReader:
        """The next call."""
        return M3Reader(self._schemas, follows=True)


def _members(text: str) -> list[Element]:
    """The tags in a text; none if they do not fit together."""
    found: list[Element] = []
    # Those that are open: name, place of what stands in it, the tags in it.
    open_: list[tuple[str, int, list[Element]]] = [("", 0, found)]
    for tag in _TAG.finditer(text):
        closes, name = tag.groups()
        if not closes:
            open_.append((name, tag.end(), []))
            if len(open_) > _MAX_DEPTH:
                return []
            continue
        opened, start, members = open_.pop()
        if opened != name or not open_:
            return []
        open_[-1][2].append(Element(name, text[start : tag.start()], members))
    return found if len(open_) == 1 else []


def _as_json(root: ToolSchema, schema: Any, element: Element) -> str:
    kind = root.kind(schema)
    if not element.members or not kind.types & {"array", "object"}:
        if not element.text.strip(SPACE) and "string" not in kind.types:
            # As templates write what is empty.
            return next((text for name, text in _EMPTY.items() if name in kind.types), '""')
        return as_json(element.text, kind)
    are_items = all(member.name == _ITEM for member in element.members)
    if "array" in kind.types and (are_items or "object" not in kind.types):
        items = root.items(schema)
        return f"[{', '.join(_as_json(root, items, member) for member in element.members)}]"
    values: dict[str, list[str]] = {}
    for member in element.members:
        values.setdefault(member.name, []).append(_as_json(root, root.member(schema, member.name), member))
    # A name that comes again makes a list of its values.
    written = {name: f"[{', '.join(found)}]" if len(found) > 1 else found[0] for name, found in values.items()}
    return f"{{{', '.join(f'{json.dumps(name, ensure_ascii=False)}: {value}' for name, value in written.items())}}}"


def minimax_m3(schemas: Schemas) -> Syntax:
    """Syntax of MiniMax M3."""
    return Syntax(lambda _: M3Reader(schemas), begins=(_TOOLS,), closers=(_END_TOOLS,))


FORMATS = (
    ToolFormat(
        "minimax_m3",
        lambda tools: minimax_m3(schemas_of(tools)),
        signs=(Sign((_TOOLS, _INVOKE)),),
        open=f"{_TOOLS}\n",
        begin=f'{_INVOKE}{NAME}">',
        end=f"{_END_INVOKE}\n",
        separator="",
        close=_END_TOOLS,
        trigger=_TOOLS,
        special=frozenset({_NS}),
        style="minimax_m3",
    ),
)
