"""Arguments of a custom tool's call whose input is of a grammar, in each style of arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openai_bls.core.request import ToolGrammar
from openai_bls.output.structured import input_grammar
from openai_bls.output.tool_parsers.custom_input import INPUT

_LINE = {"type": "regex", "pattern": r"\n?"}


def _text(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


# Texts before and after the input, where it stands as it is; the last but one ends it.
_TAGS: dict[str, tuple[list[dict[str, Any]], str, str, list[dict[str, Any]]]] = {
    # Readers drop one line break at either end.
    "qwen_xml": ([_LINE], f"<parameter={INPUT}>\n", "\n</parameter>", [_LINE]),
    "glm_xml": ([_LINE, _text(f"<arg_key>{INPUT}</arg_key>"), _LINE], "<arg_value>", "</arg_value>", [_LINE]),
    "hy_xml": (
        [_LINE, _text(f"<arg_key:opensource>{INPUT}</arg_key:opensource>"), _LINE],
        "<arg_value:opensource>",
        "</arg_value:opensource>",
        [_LINE],
    ),
    "minicpm_xml": ([], f'<param name="{INPUT}">', "</param>", []),
    "minimax_xml": ([_LINE], f'<parameter name="{INPUT}">', "</parameter>", [_LINE]),
    "kimi_k3": ([], f'<|open|>argument key="{INPUT}" type="string"<|sep|>', "<|close|>argument<|sep|>", []),
    "minimax_m3": ([], f"]<]minimax[>[<{INPUT}>", f"]<]minimax[>[</{INPUT}>", []),
    "gemma4": ([], f'{INPUT}:<|"|>', '<|"|>', []),
    "functiongemma": ([], f"{INPUT}:<escape>", "<escape>", []),
    "deepseek_xml": ([_LINE], f'<｜DSML｜parameter name="{INPUT}" string="true">', "</｜DSML｜parameter>", [_LINE]),
}
# What ends an input where its own tag is missing, or makes it be read otherwise.
_OTHER_ENDS = {"qwen_xml": ("\n<parameter=", "\n</function>"), "minicpm_xml": ("<![CDATA[",)}
# Those written as a string with JSON's escapes.
_STRINGS = {"json": (f'{{"{INPUT}": "', '"}'), "pythonic": (f'{INPUT}="', '"')}


def content(grammar: ToolGrammar, style: str, ends: Sequence[str]) -> dict[str, Any]:
    """The arguments of a call, as a `structured.Format`.

    Args:
        grammar: grammar of the input.
        style: style of the arguments.
        ends: texts that end a call even within a string.

    Raises:
        FormatError: the grammar cannot be held in this style.
    """
    if style in _STRINGS:
        begin, end = _STRINGS[style]
        return {"type": "tag", "begin": begin, "content": input_grammar.in_json(grammar, ends), "end": end}
    before, begin, end, after = _TAGS[style]
    held = input_grammar.plain(grammar, [end.strip(), *_OTHER_ENDS.get(style, ())])
    return {
        "type": "sequence",
        "elements": [*before, {"type": "tag", "begin": begin, "content": held, "end": end}, *after],
    }
