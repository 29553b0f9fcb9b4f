"""InternLM 2 and 2.5: a JSON object after two markers, of which the second names the kind of action.

Any number of times, between or after text::

<|action_start|><|plugin|>
{"name": "get_weather", "arguments": {"city": "Paris"}}<|action_end|>
"""

from __future__ import annotations

from openai_bls.output.tool_parsers.formats import Sign, ToolFormat
from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import CallScanner, Reader, after_space, expect

_BEGIN, _PLUGIN, _END = "<|action_start|>", "<|plugin|>", "<|action_end|>"


class InternReader(CallScanner):
    """Reads the second marker and the object. An action of the interpreter is no call."""

    __slots__ = ()

    def _block(self) -> Reader:
        expect((yield from after_space()), "<")
        yield from self._literal(_PLUGIN, read="<")
        yield from super()._block()


SYNTAX = Syntax(lambda _: InternReader(), begins=(_BEGIN,), ends=(_END,))
FORMATS = (
    ToolFormat(
        "internlm",
        lambda _: SYNTAX,
        signs=(Sign((f"{_BEGIN}{_PLUGIN}",)),),
        begin=f'{_BEGIN}{_PLUGIN}\n{{"name": "{{name}}", "arguments": ',
        end=f"}}{_END}",
        separator="",
        trigger=_BEGIN,
        special=frozenset({_BEGIN, _PLUGIN, _END}),
    ),
)
