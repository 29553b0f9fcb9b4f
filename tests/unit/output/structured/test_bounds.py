"""What is meant to keep a server busy: small requests that would cost seconds, hours or the process."""

from __future__ import annotations

import contextlib
import json
import math
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.core.errors import InvalidRequestError
from openai_bls.output.structured import grammar, patterns, requested
from openai_bls.output.structured.errors import FormatError
from openai_bls.output.structured.grammars import bounds, gbnf
from tests.unit.output.structured.driving import EMBEDDED, accepts, json_schema, made

# Each of these took from half a minute to for ever; they take well under a second.
pytestmark = pytest.mark.timeout(60)


def ebnf(text: str) -> dict[str, Any]:
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
        gbnf.parse(text)


def test_larks_grammars_are_told_by_one_look() -> None:
    assert not gbnf.is_lark("\n" * 200_000 + "::=")
    assert not gbnf.is_lark("start" + " " * 200_000 + "::=")
    assert gbnf.is_lark('root: "::="\n\n\t start : root')


def chain(length: int, last: str) -> str:
    rules = [f'r{at} ::= "a" r{at + 1}' for at in range(length)]
    return "\n".join(["root ::= r0", *rules, f"r{length} ::= {last}"])


def test_rules_may_use_one_another_in_a_chain_whose_length_is_bounded() -> None:
    assert accepts(made(ebnf(chain(300, '"b"'))), "a" * 300 + "b")
    assert accepts(made(ebnf(chain(300, 'r0 | "b"'))), "a" * 600 + "b")
    for text in (chain(1_200, '"b"'), chain(5_000, '"b" | root')):
        with pytest.raises(InvalidRequestError, match=" 1000 levels"):
            made(ebnf(text))
    with pytest.raises(InvalidRequestError, match="rule 'r0'"):
        made(ebnf(chain(300, "r0")))


def lark_chain(length: int) -> str:
    return "start: r0\n" + "\n".join(f'r{at}: "a" r{at + 1}' for at in range(length)) + f'\nr{length}: "b"'


def test_larks_grammars_cannot_make_the_stack_run_over() -> None:
    assert made(ebnf(lark_chain(1_000)))
    small = json_schema({"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}})["json_schema"]
    assert accepts(made(ebnf(f"start: %json {json.dumps(small)}")), "12")
    large = reference_chain(1_000, {"type": "integer"})["json_schema"]
    for source, says in (
        (lark_chain(10_000), "1500"),
        (f"start: %json {json.dumps(large)}", "1500"),
        ("start: " + "a\na: (((((b" * 1_000, "1500"),
        ("start: %json " + "[" * 50_000, "'%json'"),
    ):
        with pytest.raises(InvalidRequestError, match=says):
            made(ebnf(source))


def test_the_number_of_rules_is_bounded() -> None:
    with pytest.raises(InvalidRequestError, match=" 10000 rules"):
        made(ebnf("".join(f'{"root" if not at else f"r{at}"}::=""\n' for at in range(10_001))))


def reference_chain(length: int, last: Any) -> dict[str, Any]:
    links = {
        f"d{at}": {"type": "object", "properties": {"n": {"$ref": f"#/$defs/d{at + 1}"}}, "required": ["n"]}
        for at in range(length)
    }
    return json_schema({"$ref": "#/$defs/d0", "$defs": {**links, f"d{length}": last}})


def test_definitions_may_refer_to_one_another_in_a_chain_whose_length_is_bounded() -> None:
    assert accepts(made(reference_chain(150, {"type": "integer"})), '{"n": ' * 150 + "1" + "}" * 150)
    for last in ({"type": "integer"}, {"$ref": "#/$defs/d0"}):
        # A library would not refuse it: its stack would run over, which ends the process.
        with pytest.raises(InvalidRequestError, match=" 500 levels"):
            made(reference_chain(2_000, last))
    with pytest.raises(InvalidRequestError, match="instance"):
        made(reference_chain(100, {"$ref": "#/$defs/d0"}))


def test_many_definitions_side_by_side_are_not_deep() -> None:
    recursive = {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/r"}}, {"type": "null"}]}
    uses = {f"d{at}": {"type": "object", "properties": {"r": {"$ref": "#/$defs/r"}}} for at in range(300)}
    parts = {name: {"$ref": f"#/$defs/{name}"} for name in uses}
    assert made(json_schema({"properties": parts, "required": list(parts), "$defs": {**uses, "r": recursive}}))


@pytest.mark.parametrize("pattern", [r"\W" * 2_000, r"[\W]" * 2_000, r"[^\w]" * 2_000, r"[\W\w]" * 2_000])
def test_large_sets_are_counted(pattern: str) -> None:
    with pytest.raises(FormatError, match=" 20000 ranges"):
        patterns.full(pattern)


def test_a_class_named_twice_in_a_set_counts_once() -> None:
    assert patterns.full("[" + r"\W" * 10_000 + "]") == patterns.full(r"[\W]")


def test_patterns_are_bounded_together() -> None:
    with pytest.raises(InvalidRequestError, match=r"pattern.* 524288 "):
        made(json_schema({"properties": {f"p{at}": {"pattern": "[a]" * 1_000 + "." * 250} for at in range(60)}}))


@pytest.mark.parametrize("pattern", [r"\cA" * 10_000, "^" * 30_000, "$" * 30_000, "|" * 10_000])
def test_long_patterns_are_read_once(pattern: str) -> None:
    with contextlib.suppress(FormatError):
        patterns.full(pattern)
    with contextlib.suppress(FormatError):
        patterns.search(pattern)


ONE_OF = {"oneOf": [{"enum": [at]} for at in range(60)]}


@pytest.mark.parametrize(
    "costly",
    [
        {"oneOf": [{"enum": [f"{which}{at}" for at in range(9_000)]} for which in "abc"]},
        {"type": "object", "properties": {f"p{at}": ONE_OF for at in range(100)}},
    ],
)
def test_alternatives_are_not_all_compared(costly: dict[str, Any]) -> None:
    with contextlib.suppress(InvalidRequestError):
        made(json_schema(costly))


@pytest.mark.parametrize("param", ["one", "two"])
def test_a_refusal_from_the_cache_names_the_requests_field(param: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^'{param}': ") as caught:
        grammar({"type": "regex", "pattern": "(never seen"}, EMBEDDED, param=param)
    assert caught.value.param == param


OPTIONAL = {"type": "optional", "content": {"type": "regex", "pattern": "[a-z]"}}


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ({"type": "regex", "pattern": "(a*)*"}, "a" * 40),
        ({"type": "regex", "pattern": "(a|a)*b"}, "a" * 40 + "b"),
        ({"type": "regex", "pattern": "[a-z]?" * 300}, "abc"),
        ({"type": "regex", "pattern": "([a-z]?[b-y]*){30}"}, "abc" * 20),
        ({"type": "regex", "pattern": "(|x)(|[yz])" * 100}, "xyx"),
        ({"type": "regex", "pattern": "(.*a){20}"}, "a" * 40),
        (ebnf('root ::= ("a"?)*'), "a" * 40),
        (ebnf('root ::= ("a"? "b"?)* c\nc ::= c "c" | "c"'), "abab" * 10 + "cc"),
        (ebnf("root ::= a{300}\na ::= [a-z]?"), "abc"),
        ({"type": "sequence", "elements": [OPTIONAL] * 100}, "abc"),
        ({"type": "repeat", "min": 0, "max": 100, "content": OPTIONAL}, "abc"),
        ({"type": "any_text", "excludes": [f"<{at}>" for at in range(400)]}, "<x> 400>"),
        (json_schema({"type": "object", "properties": {f"p{at}": {} for at in range(150)}}), '{"p3": 1, "p149": 2}'),
    ],
)
def test_what_makes_other_matchers_stall(wanted: dict[str, Any], text: str) -> None:
    """Ambiguous repetitions and many ways to go on take no time here, or are refused."""
    assert accepts(made(wanted), text)


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


def multiples(digits: int) -> st.SearchStrategy[float]:
    """Numbers of so many digits, not all of them zeros behind the first, with a point anywhere."""
    whole = st.integers(10 ** (digits - 1), 10**digits - 1).filter(lambda number: number % 10 != 0)
    return st.builds(lambda number, places: number / 10**places if places else number, whole, st.integers(0, 6))


@given(multiples(6), st.sampled_from(["integer", "number"]))
def test_multiples_with_many_remainders_are_refused(multiple: float, kind: str) -> None:
    schema = {"type": kind, "multipleOf": multiple}
    for wanted in (
        json_schema({"type": "array", "items": {"anyOf": [schema, {"type": "null"}]}}),
        ebnf("start: X\nX: %json " + json.dumps(schema)),
    ):
        with pytest.raises(InvalidRequestError, match=r"'multipleOf'.* 16384 ") as info:
            made(wanted)
        assert info.value.param == "response_format"


@settings(max_examples=10, deadline=None)
@given(multiples(4), st.integers(0, 2**53), st.booleans())
def test_smaller_multiples_take_little_whatever_their_bounds(multiple: float, least: int, bounded: bool) -> None:
    schema = {"type": "integer", "multipleOf": multiple, **({"minimum": least} if bounded else {})}
    begun = time.thread_time()
    with contextlib.suppress(InvalidRequestError):  # no multiple up to 2^53
        made(json_schema(schema))
    assert time.thread_time() - begun < 5


@given(st.lists(st.integers(2, 400), min_size=2, max_size=8, unique=True))
def test_joined_multiples_count_as_their_least_common_one(multiples: list[int]) -> None:
    parts = [{"type": "integer", "multipleOf": multiple} for multiple in multiples]
    forms: list[dict[str, Any]] = [
        {"allOf": parts},
        {
            "$defs": {str(at): part for at, part in enumerate(parts)},
            "allOf": [{"$ref": f"#/$defs/{at}"} for at in range(len(parts))],
        },
        {**parts[0], "anyOf": [{"allOf": parts[1:]}]},
        {"allOf": [{"type": "object", "properties": {"p": part}} for part in parts]},
    ]
    for form in forms:
        if math.lcm(*multiples) > 1 << 14:
            with pytest.raises(FormatError, match=r"'multipleOf'.*'allOf'"):
                bounds.check_multiples(form)
        else:
            bounds.check_multiples(form)
    bounds.check_multiples({"anyOf": parts})


def test_multiples_that_people_use() -> None:
    for multiple in (1, 5, 60, 100, 1_000, 1024, 3600, 1_000_000, 10**8):
        assert accepts(made(json_schema({"type": "integer", "multipleOf": multiple})), str(3 * multiple))
    with pytest.raises(InvalidRequestError, match=r"'multipleOf'.* 16384 "):
        made(json_schema({"type": "integer", "multipleOf": 10**9}))
    for part in (0.01, 0.5, 0.25, 0.001):
        assert accepts(made(json_schema({"type": "number", "multipleOf": part})), "7")
    assert made(json_schema({"type": "object", "properties": {"multipleOf": {"type": "integer"}}}))
    many = {f"p{at}": {"type": "integer", "multipleOf": 4093} for at in range(50)}
    with pytest.raises(InvalidRequestError, match=r"'multipleOf'.* 16384 "):
        made(json_schema({"type": "object", "properties": many}))


def patterned(at: int) -> dict[str, Any]:
    return {"type": "string", "pattern": f".*{chr(97 + at % 26)}.{{{at + 5}}}"}


def joined(count: int) -> dict[str, dict[str, Any]]:
    parts = [patterned(at) for at in range(count)]
    chain: dict[str, Any] = {f"c{at}": {"$ref": f"#/$defs/c{at + 1}", **patterned(at)} for at in range(count)}
    nested = patterned(0)
    for part in parts[1:]:
        nested = {"allOf": [nested, part]}
    return {
        "plain": {"allOf": parts},
        "nested": nested,
        "referred to": {
            "$defs": {str(at): part for at, part in enumerate(parts)},
            "allOf": [{"$ref": f"#/$defs/{at}"} for at in range(count)],
        },
        "beside references": {"$defs": {**chain, f"c{count}": True}, "$ref": "#/$defs/c0", "type": "string"},
        "of properties": {"allOf": [{"type": "object", "properties": {"p": part}} for part in parts]},
    }


@pytest.mark.parametrize("form", joined(1))
def test_joined_patterns_are_few(form: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"'allOf' and .* 8 schemas"):
        made(json_schema(joined(40)[form]))
    assert made(json_schema(joined(2)[form]))


def test_joined_patterns_in_a_lark_grammar_and_at_the_limit() -> None:
    with pytest.raises(InvalidRequestError, match=r"'allOf' and .* 8 schemas"):
        made(ebnf("start: X\nX: %json " + json.dumps(joined(40)["plain"])))
    with pytest.raises(InvalidRequestError, match="patterns") as info:
        made(json_schema(joined(8)["plain"]))
    assert "SearchRegex" not in info.value.message
    assert made(json_schema({"allOf": [{"properties": {f"p{at}": {"type": "integer"}}} for at in range(30)]}))


def test_parts_deep_inside_are_read_once() -> None:
    rules = "".join(f'r{at} ::= "{at}" root "x" | [a-z]{{3}}\n' for at in range(5_000))
    for inner in (ebnf("root ::= r1 | r2\n" + rules), {"type": "regex", "pattern": "[a-z][0-9]?" * 2_900}):
        wanted = inner
        for _ in range(90):
            wanted = {"type": "optional", "content": wanted}
        with contextlib.suppress(InvalidRequestError):
            made(wanted)


def test_looking_for_joined_patterns_is_bounded() -> None:
    large = {"properties": {str(at): {"type": "integer"} for at in range(1000)}}
    many = {"$defs": {"large": large}, "anyOf": [{"allOf": [{"$ref": "#/$defs/large"}]} for _ in range(1000)]}
    with pytest.raises(FormatError, match="'allOf' and"):
        bounds.check_joined(many)
    bounds.check_joined({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"})


@pytest.mark.parametrize("size", [300_000, 2_000_000])
def test_large_schemas_are_refused_at_once(size: int) -> None:
    found = requested({"guided_json": {"enum": ["x" * 1_000] * (size // 1_000)}})
    assert found is not None
    with pytest.raises(InvalidRequestError, match=r" \d+ bytes .* 262144 "):
        grammar(found.format, EMBEDDED, param=found.param)
