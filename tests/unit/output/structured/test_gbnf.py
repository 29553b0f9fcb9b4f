"""GBNF grammars: what is one, what is refused, and that the Lark translation is the same language."""

from __future__ import annotations

import pytest

from openai_bls.output.structured.errors import FormatError
from openai_bls.output.structured.grammars import gbnf
from tests.unit.output.structured.driving import accepts, made

SAMPLES: list[tuple[str, list[str], list[str]]] = [
    ('root ::= "yes" | "no"', ["yes", "no"], ["", "yesno", "y"]),
    ('root ::= item+\nitem ::= "- " [^\\r\\n\\x0b\\x0c]{1,3} "\\n"', ["- a\n", "- é日\n- x\n"], ["- \n", "- a"]),
    ('root ::= "(" root ")" | ""', ["", "()", "(())"], ["(", "())"]),
    ("root ::= [a-z]* [0-9]{2} # end\n", ["12", "ab12"], ["1", "ab123"]),
    ('root ::= ("a" | b)? "c"\nb ::= "b" b | "b"', ["c", "ac", "bbbc"], ["abc", "b"]),
    ('root ::= [\\]\\-"^/] "\\u00e9\\"\\\\"', ['-é"\\', ']é"\\'], ["é"]),
    ('root   ::=\n  "a"\n  | "b"\n\n# c\n', ["a", "b"], ["ab"]),
    ('root ::= root "a" | "b"', ["b", "baa"], ["a", ""]),
]


@pytest.mark.parametrize(("text", "fitting", "others"), SAMPLES)
def test_samples(text: str, fitting: list[str], others: list[str]) -> None:
    wanted = made({"type": "grammar", "grammar": text})
    assert wanted.kind == "lark"
    assert [accepts(wanted, one) for one in fitting] == [True] * len(fitting)
    assert [accepts(wanted, one) for one in others] == [False] * len(others)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no rule 'root'"),
        ('a ::= "x"', "no rule 'root'"),
        ("root ::= a", "'a', which is not defined"),
        ('root ::= "a', "line 1: a line ends within a literal"),
        ('root ::= "a"\nroot ::= "b"', "two rules 'root'"),
        ('root ::= ("a"', "missing ')'"),
        ('root ::= "a")', "line 1: a rule begins with its name"),
        ("root ::= [z-a]", "bad range"),
        ("root ::= []", "nothing matches"),
        ("root ::= [^\\x00-\\U0010ffff]", "nothing matches"),
        ('root ::= "\\q"', "unknown escape"),
        ('root ::= "\\U00110000"', "unknown escape"),
        ('root ::= "\\ud83d"', "half a surrogate pair"),
        ('root ::= "a"{x}', "a count is"),
        ('root ::= "a"{3,2}', "end comes before"),
        ('root ::= "a"**', "two counts"),
        ('root ::= "a" root', "never comes to an end"),
        ('root ::= "a" | b\nb ::= "x" b', "rule 'b' never"),
        ("root ::= Token(1)", "macros"),
        ('root[lazy] ::= "a"', "a rule begins with"),
        ('root ::= a (=b)\na ::= "a"\nb ::= "b"', "lookaheads"),
        ("root ::= " + "(" * 100, "nested too deeply"),
        ("root ::= a{1000}\na ::= b{1000}\nb ::= [a-z]{1000}", "too large"),
        ("root ::= \x00", "unexpected"),
    ],
)
def test_refusals(text: str, says: str) -> None:
    with pytest.raises(FormatError) as caught:
        gbnf.parse(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('start: "a"', True),
        ('%llguidance {}\nstart: "a"', True),
        ('root ::= "start: a"', False),
        ("start ::= root", False),
        ("nonsense", True),
    ],
)
def test_which_grammars_are_larks(text: str, expected: bool) -> None:
    assert gbnf.is_lark(text) is expected
