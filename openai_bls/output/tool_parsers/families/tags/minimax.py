"""MiniMax: M1 writes JSON objects, one on a line; M2 writes arguments as XML.

M2::

<minimax:tool_call>
<invoke name="get_weather">
<parameter name="city">Paris</parameter>
</invoke>
</minimax:tool_call>
"""

from __future__ import annotations

from openai_bls.output.tool_parsers.families.json_calls.hunyuan import HUNYUAN_A13B
from openai_bls.output.tool_parsers.formats import NAME, Sign, ToolFormat
from openai_bls.output.tool_parsers.kinds import schemas_of
from openai_bls.output.tool_parsers.xml import InvokeTags, invokes

M2_TAGS = InvokeTags(
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    '<invoke name="',
    "</invoke>",
    '<parameter name="',
    "</parameter>",
)
_M1 = HUNYUAN_A13B._replace(
    name="minimax_m1",
    signs=(Sign(("<tool_calls>", "<beginning_of_sentence>", "arguments")),),
    open="<tool_calls>\n",
    separator="\n",
    close="\n</tool_calls>",
)
_M2 = ToolFormat(
    "minimax_m2",
    lambda tools: invokes(M2_TAGS, schemas_of(tools)),
    signs=(Sign((M2_TAGS.begin, "<invoke name=")),),
    open=f"{M2_TAGS.begin}\n",
    begin=f'{M2_TAGS.call}{NAME}">',
    end=f"{M2_TAGS.end_call}\n",
    separator="",
    close=M2_TAGS.end,
    trigger=M2_TAGS.begin,
    special=frozenset({M2_TAGS.begin, M2_TAGS.end}),
    style="minimax_xml",
)
FORMATS = (_M2, _M1)
