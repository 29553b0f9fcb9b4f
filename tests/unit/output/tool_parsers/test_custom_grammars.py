"""A model that wants to break the grammar of a custom tool's input cannot, in any format of calls."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from openai_bls.core.request import ToolGrammar
from openai_bls.output.detect import TOOL_FORMATS
from openai_bls.output.events import OutputParser
from openai_bls.output.harmony import HARMONY_FORMAT, HarmonyParser
from openai_bls.output.structured import FormatError
from openai_bls.output.tool_parsers.custom_input import InputDecoder
from openai_bls.output.tool_parsers.formats import ToolFormat, as_json_array
from tests.unit.output.parsing import Found, run
from tests.unit.output.structured import driving
from tests.unit.output.tool_parsers.test_constraints import walk

# As Codex CLI sends it.
APPLY_PATCH = r"""start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
_CHANGES = r"(?:(?:@@|@@ .+|[+\- ].*)\n)+(?:\*\*\* End of File\n)?"
_HUNKS = (
    r"\*\*\* Add File: .+\n(?:\+.*\n)+",
    r"\*\*\* Delete File: .+\n",
    rf"\*\*\* Update File: .+\n(?:\*\*\* Move to: .+\n)?(?:{_CHANGES})?",
)
PATCH = re.compile(rf"\*\*\* Begin Patch\n(?:{'|'.join(_HUNKS)})+\*\*\* End Patch\n?")
PATCHED = (
    '*** Begin Patch\n*** Add File: a"b\\c.py\n+\tif a < 1 && "</b>":\n+\n*** Update File: q\n'
    "*** Move to: z\n@@\n-é\n+👍\n c\n*** End of File\n*** Delete File: x\n*** End Patch\n"
)


class Language(NamedTuple):
    """A grammar, and what tells its texts."""

    syntax: str
    source: str
    holds: Callable[[str], bool]
    examples: tuple[str, ...]
    others: tuple[str, ...]


def matcher(pattern: str) -> Callable[[str], bool]:
    found = re.compile(pattern)
    return lambda text: found.fullmatch(text) is not None


def is_nested(text: str) -> bool:
    while text[:1] + text[-1:] == "()":
        text = text[1:-1].lstrip(" \n")
    return re.fullmatch(r'[a-z]*b|"\\*"', text) is not None


LANGUAGES = {
    "apply_patch": Language(
        "lark",
        APPLY_PATCH,
        lambda text: PATCH.fullmatch(text) is not None,
        (PATCHED, PATCHED[:-1]),
        (PATCHED[:-2], PATCHED + "\n", "", PATCHED.replace("\n c", "\nc")),
    ),
    # Texts that begin and end with what readers may drop, and hold what may end them.
    "lines": Language(
        "lark",
        'start: LF /[^]x]*[^\\]x]/? "]"{0,2} LF?\n%import common.LF'.replace("[^]x]*", "[^x\\]]*"),
        matcher(r"\n(?:[^x\]]*[^\]x])?\]{0,2}\n?"),
        ("\n", "\n\n", "\n </a> ]]\n", '\n"\\n\n'),
        ("", "a", "\nx\n"),
    ),
    "regex": Language(
        "regex", r'[a-c"\\\n\t]{1,5}|\d+', matcher(r'[a-c"\\\n\t]{1,5}|[0-9]+'), ('a"\n', "\\", "12"), ("", "1a", "é")
    ),
    "nested": Language(
        "lark",
        'start: "(" WS start ")" | /[a-z]*b/ | "\\"" /\\\\*/ "\\""\nWS: /[ \\n]*/',
        is_nested,
        ("((\nab))", "b", '"\\\\"', '( \n"\\")', '(\n\n(""))'),
        ("(b", "\n", '"\n"', "(b\n)"),
    ),
}
FORMS = {**TOOL_FORMATS, "harmony": HARMONY_FORMAT}
# Tags around the input where it stands as it is.
TAGS = {
    "qwen_xml": "\n<parameter=input>\n{}\n</parameter>\n",
    "glm_xml": "\n<arg_key>input</arg_key>\n<arg_value>{}</arg_value>\n",
    "minimax_xml": '\n<parameter name="input">{}</parameter>\n',
    "hy_xml": "\n<arg_key:opensource>input</arg_key:opensource>\n<arg_value:opensource>{}</arg_value:opensource>\n",
    "minicpm_xml": '<param name="input">{}</param>',
    "kimi_k3": '<|open|>argument key="input" type="string"<|sep|>{}<|close|>argument<|sep|>',
    "minimax_m3": "]<]minimax[>[<input>{}]<]minimax[>[</input>",
    "gemma4": 'input:<|"|>{}<|"|>',
    "functiongemma": "input:<escape>{}<escape>",
    "deepseek_xml": '\n<｜DSML｜parameter name="input" string="true">{}</｜DSML｜parameter>\n',
}
IDS = {
    "mistral_v11": "abcdefghi[ARGS]",
    "kimi_k2": "0<|tool_call_argument_begin|>",
    "solar_open": "a1b2c3d4e5<|tool_call:name|>held<|tool_call:args|>",
    "kimi_k3": '1"<|sep|>',
    "cohere_command": '0", "tool_name": "held", "parameters": ',
}
INPUT: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "d"}},
    "required": ["input"],
    "additionalProperties": False,
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "held", "parameters": INPUT}},
    {"type": "function", "function": {"name": "free", "parameters": INPUT}},
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},
]
every_format = pytest.mark.parametrize("form", FORMS)
every_language = pytest.mark.parametrize("language", LANGUAGES)
CHOICES: dict[str, dict[str, Any]] = {
    "auto": {"at_least_one": False, "name": None, "parallel": True},
    "required": {"at_least_one": True, "name": None, "parallel": True},
    "named": {"at_least_one": True, "name": "held", "parallel": False},
}


def constraint(form: str, language: str, choice: str) -> dict[str, Any]:
    one = LANGUAGES[language]
    grammar = ToolGrammar(one.syntax, one.source, "x")  # type: ignore[arg-type]
    return FORMS[form].constraint(TOOLS, grammars={"held": grammar}, **CHOICES[choice])


def written(form: str, text: str) -> str:
    """A call with an input, as templates write it."""
    kind = FORMS[form]
    if kind.style in TAGS:
        arguments = TAGS[kind.style].format(text)
    else:
        string = json.dumps(text, ensure_ascii=False)
        arguments = f"input={string}" if kind.style == "pythonic" else f'{{"input": {string}}}'
    return kind.open + kind.begin.replace("{name}", "held") + IDS.get(form, "") + arguments + kind.end + kind.close


def parser(form: str) -> OutputParser:
    return HarmonyParser(has_tools=True) if form == "harmony" else FORMS[form].parsers(TOOLS)()


def decoded(arguments: str) -> str:
    decoder = InputDecoder()
    return decoder.push(arguments) + decoder.finish()


def inputs(found: Found) -> list[str]:
    return [decoded(item[2]) for item in found if item[0] == "call" and item[1] == "held"]


def end_of_input(kind: ToolFormat) -> str:
    return TAGS[kind.style].partition("{}")[2].strip() if kind.style in TAGS else '"'


@every_language
@every_format
def test_texts_of_the_grammar_are_allowed_and_read_back_and_others_are_not(form: str, language: str) -> None:
    one = LANGUAGES[language]
    for choice in CHOICES:
        grammar = driving.made(constraint(form, language, choice))
        for text in (*one.examples, *one.others):
            assert one.holds(text) == (text in one.examples)
            call = written(form, text)
            assert inputs(run(parser(form), [call])) == [text]
            assert driving.accepts(grammar, call) == one.holds(text), text


@every_language
@every_format
def test_whatever_a_model_writes_its_input_is_of_the_grammar(form: str, language: str) -> None:
    one, kind = LANGUAGES[language], FORMS[form]
    grammar = driving.made(constraint(form, language, "named"))
    likely = [
        *one.examples,
        *(json.dumps(text, ensure_ascii=False)[1:-1] for text in one.examples),
        *(f"{line}*** End Patch{line}" for line in ("\n", "\\n")),
        *("\n", '"', '\\"', "\\", "\\n", "\\u003c", "</", "*** End Patch", "*** Add File: a", "+", " "),
        *(end_of_input(kind), "\n" + end_of_input(kind), kind.end, kind.close or "}", *sorted(kind.special)),
    ]
    parts = [driving.spelled(part) for part in likely]
    walks = (walk(grammar, parts, seed) for seed in range(12))
    ended = list(itertools.islice((text for text in walks if text is not None), 5))
    assert len(ended) >= 3
    for text in ended:
        found = run(parser(form), [text])
        assert [item[:2] for item in found] == [("call", "held")], text
        (read,) = inputs(found)
        assert one.holds(read), text


@every_format
@pytest.mark.parametrize("end", [*HARMONY_FORMAT.ends, "tag"])
def test_what_would_end_a_call_is_no_text_of_its_input(form: str, end: str) -> None:
    kind = FORMS[form]
    one = ToolGrammar("lark", 'start: /.+/ "<"? /.+/', "x")
    grammar = driving.made(
        kind.constraint(TOOLS, at_least_one=True, name="held", parallel=False, grammars={"held": one})
    )
    text = f"a {end_of_input(kind) if end == 'tag' else end} b"
    call = written(form, text)
    # What is allowed is read back as a whole.
    assert driving.accepts(grammar, call) == (inputs(run(parser(form), [call])) == [text])


@every_format
def test_a_recursive_grammar_is_held_or_refused_by_name(form: str) -> None:
    kind = FORMS[form]
    source = 'start: "<" start ">" | /[a-z]+/'
    one = ToolGrammar("lark", source, "x")
    wanted = kind.constraint(TOOLS, at_least_one=True, name="held", parallel=False, grammars={"held": one})
    # What ends it begins with `<`, which the grammar has; that of MiniMax M3 does not.
    if kind.style in TAGS and form != "minimax_m3":
        with pytest.raises(Exception, match="recursive"):
            driving.made(wanted)
        return
    grammar = driving.made(wanted)
    for text, good in (("<<a>>", True), ("<<a>", False)):
        call = written(form, text).replace("<", "\\u003c") if form == "harmony" else written(form, text)
        if form == "harmony":
            head = kind.begin.replace("{name}", "held")
            call = head + f'{{"input": {json.dumps(text)}}}'.replace("<", "\\u003c")
        assert driving.accepts(grammar, call) == good


def test_a_json_array_holds_no_grammar() -> None:
    array = as_json_array(TOOL_FORMATS["hermes"])
    held = {"held": ToolGrammar("regex", "a", "x")}
    with pytest.raises(FormatError):
        array.constraint(TOOLS, at_least_one=True, name=None, parallel=True, grammars=held)
    # One that is not called is not held.
    assert array.constraint(TOOLS, at_least_one=True, name="f", parallel=True, grammars=held)
