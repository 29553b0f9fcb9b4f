"""Grammars of custom tools' input: their language is the same plain, in a JSON string, and before a tag's end."""

from __future__ import annotations

import contextlib
import json
import time
from random import Random

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from openai_bls.core.engine_types import Grammar
from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.request import ToolGrammar
from openai_bls.output.structured import FormatError, input_grammar
from tests.unit.output.structured import driving
from tests.unit.output.structured.small_grammars import CHARS, PATTERNS, Small, grammars, regex

moderate = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
END = "</t>"


def escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def in_json(source: str, syntax: str = "lark") -> Grammar:
    grammar = ToolGrammar(syntax, source, "x")  # type: ignore[arg-type]
    content = input_grammar.in_json(grammar)
    return driving.made({"type": "tag", "begin": '"', "content": content, "end": '"'})


def in_tags(source: str) -> Grammar:
    content = input_grammar.plain(ToolGrammar("lark", source, "x"), [END])
    return driving.made({"type": "tag", "begin": "<t>", "content": content, "end": END})


def samples(grammar: Small, seed: int, count: int = 8) -> list[str]:
    """Texts of a language, and others that are nearly of it."""
    random = Random(seed)
    found = [text for _ in range(count) if (text := grammar.text(random)) is not None and len(text) < 20]
    near = [
        text[:at] + random.choice(CHARS) + text[at + random.randrange(2) :]
        for text in found
        for at in [random.randint(0, len(text))]
    ]
    return [*found, *near, "", *random.choices(CHARS, k=3)]


def made(grammar: Small) -> Grammar:
    try:
        return in_json(grammar.lark)
    except (FormatError, InvalidRequestError):
        # Nothing matches it, say.
        assume(False)
        raise


@moderate
@given(grammars(recursive=False), st.integers(0, 2**32))
def test_an_escaped_text_is_allowed_just_where_the_text_is_in_the_language(grammar: Small, seed: int) -> None:
    held = made(grammar)
    for text in samples(grammar, seed):
        assert driving.accepts(held, escaped(text)) == grammar.matches(text), text


@moderate
@given(grammars(recursive=True), st.integers(0, 2**32))
def test_escaping_a_recursive_grammar_changes_nothing(grammar: Small, seed: int) -> None:
    held = made(grammar)
    try:
        plain = driving.made({"type": "grammar", "grammar": grammar.lark})
    except InvalidRequestError:
        assume(False)
    for text in samples(grammar, seed):
        matches = grammar.matches(text)
        allowed = driving.accepts(held, escaped(text))
        assert matches or not allowed, text
        # llguidance's lexer takes the longest match, hence not all of the language; escaped no less of it.
        if "\x01" not in text and driving.accepts(plain, text):
            assert allowed, text


UNITS = {'"a"': "a", '"\\\\"': "\\", "/[a\\n]/": "\n", '("a" | "\\\\x")': "\\x"}


@moderate
@given(st.sampled_from([*UNITS]), st.integers(0, 1000), st.none() | st.integers(0, 1000), st.integers(-2, 2))
def test_repetitions_in_a_recursive_grammar_are_counted(part: str, least: int, more: int | None, off: int) -> None:
    most = None if more is None else max(1, least + more)
    held = in_json(f'start: "(" start ")" | {part}{{{least},{"" if most is None else most}}}\n')
    for count in (least + off, (most or least) + off):
        allowed = least <= count and (most is None or count <= most)
        if count >= 0:
            assert driving.accepts(held, escaped(f"({UNITS[part] * count})")) == allowed, count


@moderate
@given(PATTERNS, st.integers(0, 2**32))
def test_a_regular_expression_matches_the_whole_text(pattern: object, seed: int) -> None:
    grammar = Small((pattern,))  # type: ignore[arg-type]
    source = regex(grammar.bodies[0])
    held = in_json(source, "regex")
    for text in samples(grammar, seed):
        assert driving.accepts(held, escaped(text)) == grammar.matches(text), text


@moderate
@given(grammars(recursive=False), st.integers(0, 2**32))
def test_before_a_tag_the_language_is_the_same_without_the_tag(grammar: Small, seed: int) -> None:
    try:
        held = in_tags(grammar.lark)
    except (FormatError, InvalidRequestError):
        assume(False)
        raise
    for text in [*samples(grammar, seed), END, f"a{END}"]:
        assert driving.accepts(held, f"<t>{text}{END}") == (grammar.matches(text) and END not in text), text


@pytest.mark.parametrize(
    ("source", "good", "bad"),
    [
        ('start: "a" "b"? | "c"+ -> other\n', ["a", "ab", "ccc"], ["", "abb", "d"]),
        ("start: x ~ 2..3\nx: /[0-9]/ // a digit\n", ["12", "123"], ["1", "1234"]),
        ('start: x{2} y{,2} z{1,}\nx: "x"\ny: "y"\nz: "z"', ["xxz", "xxyyzz"], ["xz", "xxyyyz"]),
        ('start: [A] ("x"\n  | "y"\n)\nA.2: "Q"i\n', ["x", "Qy", "qx"], ["", "Q"]),
        (
            '?start: item ("," item)*\n!item: "a".."c"\n  | NUMBER\n%import common.NUMBER\n',
            ["a,b", "1.5,c"],
            ["d", "a,"],
        ),
        ("start: /a.b/s | /é/i\n", ["a\nb", "é", "É"], ["ab", "e"]),
        ("start: /a.b/\n", ["a\rb", 'a"b', "a\\b", "a\x7fb", "a\u2028b"], ["a\nb"]),
        ("start: WORD WORD\n%import common (WORD, WS)\n%ignore WS\n", ["a b", " a\n b", "ab"], ["a", "a b "]),
        ('start: "\\x41\\u00e9\\n\\"\\\\"\n', ['Aé\n"\\'], ["A"]),
        ("start: /[^a-z\\s]+|\\d\\w/", ["A!", "5x", '"\\'], ["a", " ", "55x"]),
        ("# a comment\nstart: /\\/\\*([^*]|\\*+[^*\\/])*\\*+\\//\n", ["/* a **/"], ["/* a */ */"]),
        # Recursive ones.
        ('start: ("<" | start) /[b\\n]/ ("\\\\x")?\n', ["<b\\x", "<b\n\\x", "<bb"], ["<\\x", "<b\\"]),
        ('start: "(" start ")" | /[a-z\\n"]*/', ['(("a\n"))', "\n", "(\n)"], ["(a", "(\\)"]),
        ('start: "\\"" start "\\"" | A\nA: /[a\\n]+/', ['"a\n"', '""a""', '"\n\n"'], ['"a', "\t"]),
        (
            'start: value\n?value: object | STRING | NUMBER\nobject: "{" [pair ("," pair)*] "}"\npair: STRING ":" '
            "value\n"
            "%import common.ESCAPED_STRING -> STRING\n%import common.NUMBER\n%import common.WS\n%ignore WS\n",
            ['{"a": {"b\\\\\\"": 1},\n\t"c":\n"d"}', "12"],
            ['{"a": }', '{"a" 1}', '{"a": 1}}'],
        ),
    ],
)
def test_the_dialect_of_lark(source: str, good: list[str], bad: list[str]) -> None:
    held = in_json(source)
    for text in good:
        assert driving.accepts(held, escaped(text)), text
    for text in bad:
        assert not driving.accepts(held, escaped(text)), text


@pytest.mark.parametrize(
    "source",
    [
        *("", "x: /a/", "start: x", "start: ", "start: /a", "start: (x", "start /a/", "start: /[/", "start: /a/ -> "),
        *('start: "a".."bc"', 'start: "c".."a"', "start: A\nA: b\nb: /x/", "start: start", "start: /a/\nstart: /b/"),
        *("%import common.NOPE\nstart: /a/", "%import python.X\nstart: /a/", "%declare X\nstart: X", "start: x{y}"),
        *('start: %json {"type": "object"}', "start: <[1]>", "start: @other", "start[lazy]: /a/", "start: A\nA: ~B"),
        *("start: /a{2,1}/", "start: /(?=a)/", "start: /\\bx/", "start: /\\p{L}/", "start: /a/x", "start: /[]/"),
        *(
            'start: "\\q"',
            "start: /a/ ~ 999999999",
            "start: " + "(" * 100 + "/a/",
            "start: /a/ %ignore",
            "start: /[^\\d\\D]/",
        ),
        "start: /" + "(" * 100 + "a" + ")" * 100 + "/",
    ],
)
def test_what_is_no_grammar_or_not_supported(source: str) -> None:
    grammar = ToolGrammar("lark", source, "x")
    if source == "start: ":
        # Nothing but the empty text.
        assert driving.accepts(in_json(source), '""')
        return
    for content in (input_grammar.in_json, input_grammar.plain):
        with pytest.raises(FormatError):
            content(grammar, [END])


@settings(deadline=None)
@given(st.text(st.sampled_from('start:/ab"()[]{}|*+?~\\\n%ignmpo.,->&x0 1'), max_size=60))
def test_any_text_is_a_grammar_or_refused(source: str) -> None:
    for syntax in ("lark", "regex"):
        for content in (input_grammar.in_json, input_grammar.plain):
            with contextlib.suppress(FormatError):
                content(ToolGrammar(syntax, source, "x"), [END])


@pytest.mark.parametrize(
    "unit", ["/./ ", '"\\n"', "(", "/a/ | ", "x ", '"a"i', "/[^a]*/", "x* ", "[", "/((((((a/", "\n"]
)
def test_costs_are_linear_in_the_definition(unit: str) -> None:
    definition = 'start: "a" ' + unit * (60_000 // len(unit)) + "\nx: /b/ | start"
    started = time.monotonic()
    with contextlib.suppress(FormatError, InvalidRequestError):
        in_json(definition)
    assert time.monotonic() - started < 20


def test_recursive_texts_that_cannot_be_told_from_their_end_are_refused() -> None:
    for source in ('start: "<" start ">" | /a/', "start: /a/ start | /\\n+/"):
        content = input_grammar.plain(ToolGrammar("lark", source, "x"), ["</t>"])
        with pytest.raises(InvalidRequestError):
            driving.made({"type": "tag", "begin": "<t>\n", "content": content, "end": "\n</t>"})
    content = input_grammar.plain(ToolGrammar("lark", 'start: "(" start ")" | /a\\n+b/', "x"), ["</t>"])
    held = driving.made({"type": "tag", "begin": "<t>\n", "content": content, "end": "\n</t>"})
    assert driving.accepts(held, "<t>\n((a\n\nb))\n</t>")
    assert not driving.accepts(held, "<t>\n((a\n\nb)\n</t>")
