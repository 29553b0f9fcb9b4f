"""xLAM 2: a JSON list of calls as the whole answer; also in a fence, or behind other models' markers.

As in::

[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "stop", "arguments": {}}]
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from openai_bls.output.tool_parsers.formats import NAME, Sign, ToolFormat, names_of
from openai_bls.output.tool_parsers.json_array import ArrayReader
from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import CallReader, Reader, after_space, expect

_FENCE, _END_FENCE = "```json", "```"
_IN_TEXT = f"\n{_FENCE}\n[{{"
_MARKERS = ("<tool_call>", "[TOOL_CALLS]")


class XlamReader(ArrayReader):
    """Reads the next call of the list. Since only its form identifies a call, it must have a tool's name."""

    __slots__ = ("_fenced", "_marker")

    def __init__(self, names: Set[str], marker: str, *, fenced: bool = False, in_list: bool = False) -> None:
        self._marker = marker
        self._fenced = fenced
        super().__init__(names, in_list=in_list)

    def _block(self) -> Reader:
        if self._marker == _IN_TEXT:
            self._fenced = True
            yield from self._members()
            return
        char = yield from after_space()
        if char == _FENCE[0] and not self._marker and not self._in_list:
            yield from self._literal(_FENCE, read=char)
            self._fenced = True
            char = yield from after_space()
        yield from self._first(char)
        if self.idle and self._fenced:
            expect((yield from after_space()), _END_FENCE[0])
            yield from self._literal(_END_FENCE, read=_END_FENCE[0])

    def following(self) -> CallReader:
        """The next call."""
        return XlamReader(self._names, "", fenced=self._fenced, in_list=True)


def xlam(names: Iterable[str]) -> Syntax:
    """Syntax of xLAM 2; `names` are those of the request's tools."""
    known = frozenset(names)
    return Syntax(
        lambda marker: XlamReader(known, marker),
        begins=(_IN_TEXT, *_MARKERS),
        closers=("</tool_call>",),
        at_start=True,
    )


FORMATS = (
    ToolFormat(
        "xlam",
        lambda tools: xlam(names_of(tools)),
        signs=(Sign(('[{"name": "tool_call_name", "arguments": ',)),),
        open="[",
        begin=f'{{"name": "{NAME}", "arguments": ',
        end="}",
        separator=", ",
        close="]",
        trigger="[",
        excludes=(_IN_TEXT, *_MARKERS),
        only_at_start=(' [ { "name"', ' [ { "type" : "function"', f" {_FENCE}"),
    ),
)
