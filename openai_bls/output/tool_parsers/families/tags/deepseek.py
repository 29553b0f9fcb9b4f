"""DeepSeek: V3 and R1, V3.1, and V3.2 and V4, which write arguments as XML and say which of them are
strings."""

from __future__ import annotations

from openai_bls.output.tool_parsers.formats import NAME, Sign, ToolFormat
from openai_bls.output.tool_parsers.kinds import schemas_of
from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import SPACE, CallReader, Reader, after_space, expect, structure
from openai_bls.output.tool_parsers.xml import InvokeTags, invokes

CALLS_BEGIN = "<｜tool▁calls▁begin｜>"
CALLS_END = "<｜tool▁calls▁end｜>"
CALL_BEGIN = "<｜tool▁call▁begin｜>"
CALL_END = "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
V32_TAGS = InvokeTags(
    "<｜DSML｜function_calls>",
    "</｜DSML｜function_calls>",
    '<｜DSML｜invoke name="',
    "</｜DSML｜invoke>",
    '<｜DSML｜parameter name="',
    "</｜DSML｜parameter>",
    typed=True,
)
V4_TAGS = V32_TAGS._replace(begin="<｜DSML｜tool_calls>", end="</｜DSML｜tool_calls>")


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


SYNTAX = Syntax(DeepSeekReader, begins=(CALLS_BEGIN, CALL_BEGIN), ends=(CALL_END, CALLS_END), closers=(CALLS_END,))
_V3 = ToolFormat(
    "deepseek_v3",
    lambda _: SYNTAX,
    signs=(Sign((CALL_BEGIN, SEPARATOR, "```json"), lacks=("DSML",)),),
    open=CALLS_BEGIN,
    begin=f"{CALL_BEGIN}function{SEPARATOR}{NAME}\n```json\n",
    end=f"\n```{CALL_END}",
    close=CALLS_END,
    trigger=CALLS_BEGIN,
    excludes=(CALL_BEGIN,),
    special=frozenset({CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, SEPARATOR}),
)
_V31 = _V3._replace(
    name="deepseek_v31",
    signs=(Sign((CALL_BEGIN, SEPARATOR), lacks=("DSML",)),),
    begin=f"{CALL_BEGIN}{NAME}{SEPARATOR}",
    end=CALL_END,
    separator="",
)
_V32 = ToolFormat(
    "deepseek_v32",
    lambda tools: invokes(V32_TAGS, schemas_of(tools)),
    signs=(Sign((V32_TAGS.begin, V32_TAGS.call)),),
    open=f"{V32_TAGS.begin}\n",
    begin=f'{V32_TAGS.call}{NAME}">',
    end=f"{V32_TAGS.end_call}\n",
    separator="",
    close=V32_TAGS.end,
    trigger=V32_TAGS.begin,
    special=frozenset({"｜DSML｜"}),
    style="deepseek_xml",
)
_V4 = _V32._replace(
    name="deepseek_v4",
    syntax=lambda tools: invokes(V4_TAGS, schemas_of(tools)),
    signs=(Sign((V4_TAGS.begin, V4_TAGS.call)),),
    open=f"{V4_TAGS.begin}\n",
    close=V4_TAGS.end,
    trigger=V4_TAGS.begin,
)
FORMATS = (_V4, _V32, _V3, _V31)
