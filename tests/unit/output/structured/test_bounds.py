"""What is meant to keep a server busy: small requests that would cost seconds, hours or the process."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.core.errors import InvalidRequestError
from openai_bls.output.structured import (
    ebnf,
    ebnf_tree,
    formats,
    gates,
    grammar,
    instances,
    leaves,
    patterns,
    references,
    selection,
    skips,
)
from openai_bls.output.structured.errors import FormatError
from tests.unit.output.structured.driving import BOTH, XGRAMMAR, accepts, json_schema, made

# Each of these took from half a minute to for ever; they take well under a second.
pytestmark = pytest.mark.timeout(60)


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> Callable[[], int]:
    """Count the calls of a function from now on."""
    calls = 0
    original = getattr(owner, name)

    def call(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        return original(*args)

    monkeypatch.setattr(owner, name, call)
    return lambda: calls


def gbnf(text: str) -> dict[str, Any]:
    return {"type": "grammar", "grammar": text}


@pytest.mark.parametrize(
    "text",
    [
        "root ::= a " + "#" * 100_000,
        "root ::= a " + "# x\n" * 50_000 + "b",
        'root ::= "a"' + "{1," + " " * 100_000,
        'root ::= "a"' + "{1" + " " * 100_000,
        "a" * 200_000,
        "(" + " " * 200_000,
    ],
)
def test_no_text_is_read_again_and_again(text: str) -> None:
    with pytest.raises(FormatError):
        ebnf.parse(text)


def test_comments_and_space_before_the_sign() -> None:
    assert list(ebnf.parse('root # one\n # two\n\n ::= a # "x"\n b\n#::=\na::="a"b ::= "b" #')) == ["root", "a", "b"]


def test_larks_grammars_are_told_by_one_look() -> None:
    assert not ebnf.is_lark("\n" * 200_000 + "::=")
    assert not ebnf.is_lark("start" + " " * 200_000 + "::=")
    assert ebnf.is_lark('root: "::="\n\n\t start : root')


def chain(length: int, last: str) -> str:
    rules = [f'r{at} ::= "a" r{at + 1}' for at in range(length)]
    return "\n".join(["root ::= r0", *rules, f"r{length} ::= {last}"])


@pytest.mark.parametrize("backends", [XGRAMMAR, ("llguidance",)], ids="".join)
def test_rules_may_use_one_another_in_a_chain_whose_length_is_bounded(backends: tuple[str, ...]) -> None:
    assert accepts(made(gbnf(chain(300, '"b"')), backends), "a" * 300 + "b")
    assert accepts(made(gbnf(chain(300, 'r0 | "b"')), backends), "a" * 600 + "b")
    for text in (chain(1_200, '"b"'), chain(5_000, '"b" | root')):
        with pytest.raises(InvalidRequestError, match="over 1000 levels"):
            made(gbnf(text), backends)
    with pytest.raises(InvalidRequestError, match="never comes to an end"):
        made(gbnf(chain(300, "r0")), backends)


def lark_chain(length: int) -> str:
    return "start: r0\n" + "\n".join(f'r{at}: "a" r{at + 1}' for at in range(length)) + f'\nr{length}: "b"'


def test_larks_grammars_cannot_make_the_stack_run_over() -> None:
    assert made(gbnf(lark_chain(1_000)))
    small = json_schema({"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}})["json_schema"]
    assert accepts(made(gbnf(f"start: %json {json.dumps(small)}")), "12")
    large = reference_chain(1_000, {"type": "integer"})["json_schema"]
    for source, says in (
        (lark_chain(10_000), "over 1500 levels deep"),
        (f"start: %json {json.dumps(large)}", "over 1500 levels deep"),
        ("start: " + "a\na: (((((b" * 1_000, "over 1500 levels deep"),
        ("start: %json " + "[" * 50_000, "'%json' without a JSON schema"),
    ):
        with pytest.raises(InvalidRequestError, match=says):
            made(gbnf(source))


def test_the_number_of_rules_is_bounded() -> None:
    with pytest.raises(InvalidRequestError, match="over 10000 rules"):
        made(gbnf("".join(f'{"root" if not at else f"r{at}"}::=""\n' for at in range(10_001))))


def test_dependencies_come_first() -> None:
    rules = ebnf.parse('root ::= a b\nb ::= a c | "x"\na ::= "a"\nc ::= b "c"')
    assert ebnf_tree.dependencies_first(rules) == ["a", "c", "b", "root"]


def reference_chain(length: int, last: Any) -> dict[str, Any]:
    links = {
        f"d{at}": {"type": "object", "properties": {"n": {"$ref": f"#/$defs/d{at + 1}"}}, "required": ["n"]}
        for at in range(length)
    }
    return json_schema({"$ref": "#/$defs/d0", "$defs": {**links, f"d{length}": last}})


@pytest.mark.parametrize("backends", [XGRAMMAR, ("llguidance",)], ids="".join)
def test_definitions_may_refer_to_one_another_in_a_chain_whose_length_is_bounded(backends: tuple[str, ...]) -> None:
    assert accepts(made(reference_chain(150, {"type": "integer"}), backends), '{"n": ' * 150 + "1" + "}" * 150)
    for last in ({"type": "integer"}, {"$ref": "#/$defs/d0"}):
        # A library would not refuse it: its stack would run over, which ends the process.
        with pytest.raises(InvalidRequestError, match="over 500 levels"):
            made(reference_chain(2_000, last), backends)
    with pytest.raises(InvalidRequestError, match="no instance that ends"):
        made(reference_chain(100, {"$ref": "#/$defs/d0"}), backends)


def test_many_definitions_side_by_side_are_not_deep() -> None:
    recursive = {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/r"}}, {"type": "null"}]}
    uses = {f"d{at}": {"type": "object", "properties": {"r": {"$ref": "#/$defs/r"}}} for at in range(300)}
    parts = {name: {"$ref": f"#/$defs/{name}"} for name in uses}
    assert made(json_schema({"properties": parts, "required": list(parts), "$defs": {**uses, "r": recursive}}))


NAMES = "abcdef"


@settings(deadline=None, max_examples=100)
@given(st.fixed_dictionaries({name: st.sets(st.sampled_from(NAMES), max_size=3) for name in NAMES}))
def test_circles(uses: dict[str, set[str]]) -> None:
    reach = {name: set(used) for name, used in uses.items()}
    for _ in NAMES:
        reach = {name: used.union(*(reach[other] for other in used)) for name, used in reach.items()}
    found = references.circles(uses)
    assert sorted(name for group in found for name in group) == list(NAMES)
    place = {name: at for at, group in enumerate(found) for name in group}
    for one in NAMES:
        for other in NAMES:
            together = one == other or (other in reach[one] and one in reach[other])
            assert (place[one] == place[other]) is together
            assert together or other not in reach[one] or place[other] < place[one]


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_gates_open_as_rounds_over_all_of_them_would_find(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 8))
    kinds = [data.draw(st.sampled_from([all, any])) for _ in range(count)]
    parts = [data.draw(st.lists(st.integers(0, count - 1), max_size=3)) for _ in range(count)]
    made_of = gates.Gates()
    numbers = [made_of.any_of(()) for _ in range(count)]
    for number, kind, used in zip(numbers, kinds, parts, strict=True):
        inner = [numbers[part] for part in used]
        made_of.add(number, made_of.all_of(inner) if kind is all else made_of.any_of(inner))
    expected = [False] * count
    for _ in range(count):
        expected = [kind(expected[part] for part in used) for kind, used in zip(kinds, parts, strict=True)]
    found = made_of.settle()
    assert [found[number] for number in numbers] == expected


@pytest.mark.parametrize("pattern", [r"\W" * 2_000, r"[\W]" * 2_000, r"[^\w]" * 2_000, r"[\W\w]" * 2_000])
def test_large_sets_are_counted(pattern: str) -> None:
    with pytest.raises(FormatError, match="over 20000 ranges of characters"):
        patterns.full(pattern)


def test_a_class_named_twice_in_a_set_counts_once() -> None:
    assert patterns.full("[" + r"\W" * 10_000 + "]") == patterns.full(r"[\W]")


def test_the_plain_form_is_bounded() -> None:
    with pytest.raises(FormatError, match="over 131072 characters"):
        patterns.full("." * 10_000)
    with pytest.raises(InvalidRequestError, match="patterns are too large: over 524288 characters"):
        made(json_schema({"properties": {f"p{at}": {"type": "string", "pattern": r"\W" * 25} for at in range(100)}}))


@pytest.mark.parametrize("pattern", [r"\cA" * 10_000, "^" * 30_000, "$" * 30_000, "|" * 10_000])
def test_long_patterns_are_read_once(pattern: str) -> None:
    with contextlib.suppress(FormatError):
        patterns.full(pattern)
    with contextlib.suppress(FormatError):
        patterns.search(pattern)


def test_enumerations_are_compared_as_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = counted(monkeypatch, instances, "comparable")
    parts = [{"enum": [f"{which}{at}" for at in range(3_000)]} for which in "abc"]
    assert "anyOf" in instances.pruned({"oneOf": parts})
    assert seen() == 9_000


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, 1.0), (True, 1), ([1, {"a": None}], [1.0, {"a": None}]), (["boolean", 1], True), ({}, []), ("1", 1), ([], "")],
)
def test_comparable_is_as_equal_as_the_values(one: Any, other: Any) -> None:
    assert (leaves.comparable(one) == leaves.comparable(other)) is leaves.equal(one, other)


def test_many_alternatives_are_not_all_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = counted(monkeypatch, instances._Pruner, "_exclude")
    one_of = {"oneOf": [{"enum": [at]} for at in range(60)]}
    instances.pruned({"type": "object", "properties": {f"p{at}": one_of for at in range(100)}})
    assert 1_000 < compared() <= 20_000


OPTIONAL = {"type": "optional", "content": {"type": "regex", "pattern": "[a-z]"}}


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"type": "regex", "pattern": "[a-z]?" * 30}, "over 20 parts to choose from"),
        ({"type": "regex", "pattern": "([a-z]?[b-y]*){30}"}, "over 20 parts to choose from"),
        ({"type": "regex", "pattern": "(|x)(|[yz])" * 15}, "over 20 parts to choose from"),
        (gbnf("root ::= " + "[a-z]? " * 30), "over 20 parts to choose from"),
        (gbnf("root ::= a{30}\na ::= [a-z]?"), "over 20 parts to choose from"),
        (
            {"type": "regex", "pattern": f"({'|'.join(f'[{at}-z]+' for at in 'abcdefghijklmnopqrstuvwx')})*"},
            "over 20 parts",
        ),
        ({"type": "sequence", "elements": [OPTIONAL] * 30}, "over 20 parts to choose from"),
        ({"type": "repeat", "min": 0, "max": 100, "content": OPTIONAL}, "over 20 parts to choose from"),
        ({"type": "any_text", "excludes": [f"<{at}>" for at in range(400)]}, "over 400 characters in all"),
        (
            json_schema({"type": "object", "properties": {f"p{at}": {"type": "integer"} for at in range(150)}}),
            "'properties'",
        ),
    ],
)
def test_what_takes_xgrammar_long_is_llguidances(wanted: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        made(wanted, XGRAMMAR)
    assert made(wanted, BOTH).backend == "llguidance"


@pytest.mark.parametrize(
    ("pattern", "most"),
    [
        ("abc", 0),
        ("a?b?c?", 3),
        ("a?b?-c?", 2),
        ("(a?b?-c?){2}", 3),
        ("(a?b?){3}", 6),
        ("[a-z]{0,3000}", 1),
        ("(a?b?|c)d*", 3),
        ("(|x)(|y)", 2),
        ("((a?b)?c?)*", 4),
        ("(a+|b+|c)*", 2),
        ("a+|b+|c+", 0),
    ],
)
def test_parts_that_may_be_left_out(pattern: str, most: int) -> None:
    assert patterns.full(pattern).skips.most == most


def test_skips_of_nothing() -> None:
    assert skips.in_turn([]) == skips.one_of([skips.NOTHING]) == skips.NOTHING


@pytest.mark.parametrize(
    "keyword", ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "enum", "const"]
)
@pytest.mark.parametrize("value", [10**400, -(10**400), 2**1024])
def test_numbers_beyond_floats(keyword: str, value: int) -> None:
    with pytest.raises(InvalidRequestError, match=r"2\^53|above 0"):
        made(json_schema({"type": "number", keyword: [value] if keyword == "enum" else value}))


@pytest.mark.parametrize("key", ["minLength", "minItems", "minProperties", "maxLength"])
def test_counts_beyond_floats(key: str) -> None:
    kind = {"L": "string", "I": "array", "P": "object"}[key[3]]
    with pytest.raises(InvalidRequestError):
        made(json_schema({"type": kind, key: 10**400}))


def test_a_refusal_is_found_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = counted(monkeypatch, formats._Checker, "check")
    for param in ("one", "two"):
        with pytest.raises(InvalidRequestError, match=f"^'{param}': bad regular expression: missing") as caught:
            grammar({"type": "regex", "pattern": "(never seen"}, backends=BOTH, param=param)
        assert caught.value.param == param
    assert looked() == 1


def test_recursion_is_a_clients_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_deep(_: object) -> None:
        raise RecursionError

    monkeypatch.setattr(selection, "checked", too_deep)
    with pytest.raises(InvalidRequestError, match="nested too deeply"):
        made({"type": "regex", "pattern": "not seen before"})
