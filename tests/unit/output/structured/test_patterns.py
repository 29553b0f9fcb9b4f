"""Regular expressions: nothing matches here that does not match in Python, and dialects that differ are told apart."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from openai_bls.core.errors import InvalidRequestError
from openai_bls.output.structured import patterns
from openai_bls.output.structured.errors import FormatError
from tests.unit.output.structured.driving import accepts, json_schema, made

ATOMS = st.sampled_from(
    ["a", "b", ".", r"\d", r"\w", r"\s", r"\S", r"\D", r"\W", "[ab]", "[^a]", "[a-c1]", r"[^\w]", "é", r"\.", "/", "&~"]
)
SIGNS = st.sampled_from(["*", "+", "?", "{1,2}", "{2}", "{1,}", "*?"])


def _deeper(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds(str.__add__, inner, inner),
        st.builds("(?:{}|{})".format, inner, inner),
        st.builds("({}){}".format, inner, SIGNS),
        st.builds("{}|{}".format, inner, inner),
        st.builds("(?P<x>{}|)".format, ATOMS),
    )


EXPRESSIONS = st.recursive(ATOMS, _deeper, max_leaves=6).filter(lambda text: text.count("?P<x>") < 2)
TEXTS = st.text(alphabet="ab1 x.é/\n&~-Z_\u2028", max_size=4)
# Where dialects differ the plain form takes the narrower meaning.
DIFFER = re.compile(r"\.|\\[dwsDWS]")


def fits(pattern: str, text: str) -> bool:
    return accepts(made({"type": "regex", "pattern": pattern}), text)


def found_in(pattern: str, text: str) -> bool:
    return accepts(made(json_schema({"type": "string", "pattern": pattern})), json.dumps(text, ensure_ascii=False))


@settings(deadline=None, max_examples=100)
@given(pattern=EXPRESSIONS, texts=st.lists(TEXTS, min_size=3, max_size=6))
def test_what_matches_here_matches_in_python(pattern: str, texts: list[str]) -> None:
    try:
        whole, somewhere = made({"type": "regex", "pattern": pattern}), made(json_schema({"pattern": pattern}))
    except InvalidRequestError:
        reject()
    for text in texts:
        original = re.fullmatch(pattern, text) is not None
        ours = accepts(whole, text)
        assert original or not ours
        assert DIFFER.search(pattern) or ours == original
        assert re.search(pattern, text) or not accepts(somewhere, json.dumps(text, ensure_ascii=False))


@pytest.mark.parametrize(
    ("pattern", "found", "not_found"),
    [
        ("b", ["b", "abc", "\nb\n"], ["", "a"]),
        ("^b", ["b", "bc"], ["ab"]),
        ("b$", ["b", "ab"], ["ba"]),
        ("^a|b$", ["ax", "xb", "a"], ["xa"]),
        ("^(a|b)$", ["a", "b"], ["ab", ""]),
        ("(^a|b)c", ["ac", "xbc", "acx"], ["xac"]),
        ("(?:^foo$|^bar$)", ["foo", "bar"], ["foobar", "xfoo"]),
        (r"\Aa\Z", ["a"], ["ab"]),
        ("", ["", "x\ny"], []),
        ("^$", [""], ["x"]),
    ],
)
def test_search(pattern: str, found: list[str], not_found: list[str]) -> None:
    assert [found_in(pattern, text) for text in found + not_found] == [True] * len(found) + [False] * len(not_found)


@pytest.mark.parametrize(
    ("pattern", "matched", "doubtful"),
    [
        (".", "a é", "\n\r\u2028\u2029"),
        (r"\d", "09", "٣a"),
        (r"\D", "aé", "٣5"),
        (r"\w", "aZ_9", "é-"),
        (r"\W", "-€", "éa_٣"),
        (r"\s", " \t\n\v", "\xa0\ufeff\x1ca"),
        (r"\S", "aé", " \xa0\ufeff\x1c\u2028"),
        (r"[^\s]", "aé", " \xa0\ufeff\x1c\u2028"),
        (r"[^\W]", "a_", "é-"),
    ],
)
def test_where_dialects_differ_only_what_is_common_to_them_matches(pattern: str, matched: str, doubtful: str) -> None:
    assert all(fits(pattern, char) for char in matched)
    assert not any(fits(pattern, char) for char in doubtful)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"\u00e9\x41\t", "éA\t"),
        (r"\ud83d\ude00", "😀"),
        (r"\u{1F600}\U0001f600", "😀😀"),
        (r"[\u4e00-\u9fff\]\-]{3}", "日]-"),
        (r"\/\-\"\@", '/-"@'),
        ("a{,2}b", "aab"),
        ("x{ {1}", "x{ "),
        ("{2}", "{2}"),
        (r"[\b\0]\cA", "\x08\x01"),
        ("a&&b[&&~~-]#x", "a&&b&#x"),
    ],
)
def test_escapes_of_several_dialects(pattern: str, text: str) -> None:
    assert fits(pattern, text)


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("(", "missing ')' at position 1"),
        ("a)", "unmatched ')' at position 1"),
        ("[a", "missing ']'"),
        ("[a-", "missing ']'"),
        ("[", "missing ']'"),
        ("*a", "nothing to repeat"),
        ("a**", "multiple repeat"),
        ("a{2}{3}", "multiple repeat"),
        ("a{3,2}", "whose end comes before"),
        ("[z-a]", "bad range"),
        (r"[\d-z]", "bad range"),
        (r"[^\s\S]", "nothing matches"),
        ("a\\", "backslash"),
        (r"\q", "unknown escape"),
        (r"\x4", "bad escape"),
        (r"\ud83d", "no character"),
        ("\ud83d", "surrogate pair"),
        (r"(a)\1", "back references"),
        (r"(?P<a>b)(?P=a)", "back references"),
        ("(?=a)", "lookaheads"),
        ("(?!a)", "lookaheads"),
        ("(?<=a)b", "lookbehinds"),
        ("(?<!a)b", "lookbehinds"),
        ("(?i)a", "inline flags"),
        ("(?>a)", "atomic groups"),
        ("a++", "possessive quantifiers"),
        (r"\bfoo", "word boundaries"),
        (r"\p{L}", "Unicode properties"),
        ("[[:alpha:]]", "POSIX"),
        ("[]a]", "begin with ']'"),
        ("a^b", "'^'"),
        ("(^a)*", "anchors"),
        ("(a{1000}){1000}", "too large"),
        ("(" * 1000, "deep"),
        ("a" * 40_000, "longer than"),
    ],
)
def test_refusals(pattern: str, says: str) -> None:
    with pytest.raises(FormatError, match=re.escape(says)):
        patterns.full(pattern)
    with pytest.raises(FormatError):
        patterns.search(pattern)
