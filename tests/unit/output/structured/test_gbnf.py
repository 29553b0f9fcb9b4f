"""Formats as GBNF grammars, held against xgrammar's own structural tags for the same formats."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from random import Random
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from openai_bls.core.engine_types import Grammar
from openai_bls.core.errors import InvalidRequestError
from openai_bls.output.detect import TOOL_FORMATS
from openai_bls.output.reasoning_parser import Reasoning
from openai_bls.output.structured import Format, grammar
from openai_bls.output.structured.errors import FormatError
from openai_bls.output.structured.formats import checked
from openai_bls.output.structured.gbnf import gbnf
from tests.unit.output.parsing import run
from tests.unit.output.structured.driving import XGRAMMAR, accepts, demo, drive, json_schema, made, tiny
from tests.unit.output.structured.schemas import NAMES
from tests.unit.output.tool_parsers.test_constraints import SCHEMAS, TOOLS, WRITTEN

STEADY = settings(deadline=None, suppress_health_check=list(HealthCheck))
KINDS = ("json_schema", "regex", "ebnf")
THINKING = Reasoning("<think>", "</think>")
# As `gbnf_writing` says: every xgrammar reads these tokens alike.
LITERAL = r'"(?:[^"\\\x00-\x1f\x7f-\U0010ffff]|\\["\\nrt]|\\u[0-9a-f]{4}|\\U[0-9a-f]{8})*"'
CLASS = r"\[\^?(?:(?:[A-Za-z0-9]|\\u00[0-7][0-9a-f])(?:-(?:[A-Za-z0-9]|\\u00[0-7][0-9a-f]))?)+\]"
RULE = re.compile(rf"[a-z]+(?:_[0-9]+)? ::= (?:(?:{LITERAL}|{CLASS}|[a-z]+_[0-9]+|[()|*?]) ?)+")


def both(wanted: Format) -> tuple[Grammar, Grammar]:
    """The structural tag, or whatever is best where there are tags, and the GBNF grammar."""
    found = checked(wanted)
    assert found.beyond_xgrammar is None
    text = gbnf(found.format)
    assert all(RULE.fullmatch(line) for line in text.split("\n")), text
    assert text.startswith("root ::= ")
    return made(wanted, XGRAMMAR), Grammar("ebnf", text)


def changed(text: str, random: Random) -> str:
    """The text with a character more, less or other."""
    place, kind = random.randrange(len(text) + 1), random.randrange(3)
    letter = random.choice(["<", '"', "x", "é", "}", ",", " ", "1", "日", "\\", "\n", "</"])
    return text[:place] + (letter if kind else "") + text[place + (kind != 1) :]


def agree(
    wanted: Format, random: Random, texts: Sequence[str] = (), *, narrower: bool = False, limit: int = 300
) -> list[str]:
    """Whether both grammars allow the same texts: outputs of each, those changed, and others. Returns the outputs.

    Args:
        wanted: the format.
        random: what to go by.
        texts: the others.
        narrower: whether the GBNF grammar may allow less.
        limit: of tokens in an output.
    """
    tag, rules = both(wanted)
    raw = [drive(vocabulary, rules, random, limit) for vocabulary in (tiny(), demo())] + [
        drive(tiny(), tag, random, limit)
    ]
    # Free text may hold any bytes, with tags as well.
    outputs = [text for text in ((one or b"").decode(errors="replace") for one in raw) if "\ufffd" not in text]
    for text in [*outputs, *texts, *(changed(text, random) for text in outputs for _ in range(2))]:
        if "\0" not in text:
            allowed, fits = accepts(rules, text), accepts(tag, text)
            assert allowed <= fits if narrower else allowed == fits, (text, rules.text)
    return [text for text in outputs if text]


LEAVES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(
        [{"type": name} for name in ("string", "boolean", "null", "number", "integer", "object", "array")] + [{}, True]
    ),
    st.builds(
        lambda values: {"enum": values},
        st.lists(st.sampled_from([1, -2, "a", '"\\/', "", None, True, "日\n\x7f"]), min_size=1),
    ),
    st.builds(
        lambda low, more, keys: {"type": "integer", keys[0]: low, keys[1]: low + 2 + more},
        st.integers(-1200, 1200),
        st.integers(0, 3000),
        st.tuples(st.sampled_from(["minimum", "exclusiveMinimum"]), st.sampled_from(["maximum", "exclusiveMaximum"])),
    ),
    st.builds(
        lambda key, bound: {"type": "integer", key: bound},
        st.sampled_from(["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"]),
        st.integers(-1200, 1200) | st.sampled_from([0, 1, 9, 10, 100, 999, 2**53, -(2**53)]),
    ),
    st.just({"type": ["string", "null", "integer"]}),
    st.just({"$ref": "#/$defs/node"}),
)


@st.composite
def containers(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> Any:
    match draw(st.integers(0, 4)):
        case 0:
            least = draw(st.integers(0, 6))
            return {
                "type": "array",
                "items": draw(inner),
                "minItems": least,
                "maxItems": least + draw(st.integers(0, 6)),
            }
        case 1:
            return {"type": "array", "items": draw(inner), "minItems": draw(st.integers(0, 2))}
        case 2:
            return {"anyOf": draw(st.lists(inner, min_size=1, max_size=3))}
        case 3:
            return {"type": "object", "additionalProperties": draw(inner)}
    names = draw(st.lists(NAMES, unique=True, max_size=4))
    required = [name for name in names if draw(st.booleans())]
    properties = {name: draw(inner) for name in names}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


NODE = {
    "type": "object",
    "properties": {"v": {"type": "string"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
    "required": ["v"],
    "additionalProperties": False,
}
SCHEMA = st.recursive(LEAVES, containers, max_leaves=6).map(
    lambda schema: {**(schema if isinstance(schema, dict) else {}), "$defs": {"node": NODE}}
)


@settings(STEADY, max_examples=60)
@given(schema=SCHEMA, seed=st.integers(0, 2**32))
def test_json(schema: Any, seed: int) -> None:
    assume(checked(json_schema(schema)).beyond_xgrammar is None)
    for text in agree(json_schema(schema), Random(seed)):
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))


@settings(STEADY, max_examples=50)
@given(
    schemas=st.lists(SCHEMA, max_size=3),
    required=st.integers(0, 3),
    other=st.none() | SCHEMA,
    seed=st.integers(0, 2**32),
)
def test_json_written_as_xml(schemas: list[Any], required: int, other: Any, seed: int) -> None:
    names = [f"p{place}" for place in range(len(schemas))]
    whole: dict[str, Any] = {
        "type": "object",
        "properties": dict(zip(names, schemas, strict=True)),
        "required": names[:required],
        "additionalProperties": False,
        "$defs": {"node": NODE},
    }
    if other is not None and not names:
        whole["additionalProperties"] = other
    # Of items that nothing is said of xgrammar allows none there.
    text = re.sub(
        r'\{"type": "array"(, "\$defs"|\})', r'{"type": "array", "items": {"type": "null"}\1', json.dumps(whole)
    )
    agree({"type": "json_schema", "json_schema": json.loads(text), "style": "qwen_xml"}, Random(seed))


WORDS = st.sampled_from(["<a>", "</a>", "<<b", "##", "xyx", "é!"])
SMALL: st.SearchStrategy[Any] = st.one_of(
    st.builds(lambda value: {"type": "const_string", "value": value}, st.sampled_from(["a", '"\n', "日", "<a", "x\\"])),
    st.builds(
        lambda pattern: {"type": "regex", "pattern": pattern},
        st.sampled_from(["a+b?", "(a|b*)*", "[^a<]{2,5}", r"(\d{2,}|é[à-ü])x{0,3}", ".", "(a?){3,9}", r"x{40}y{0,30}"]),
    ),
    st.builds(
        lambda source: {"type": "grammar", "grammar": source},
        st.sampled_from(
            [
                'root ::= "a" root | [b-d]{2,3}',
                'root ::= item*\nitem ::= [^a"]? | "é"',
                'root ::= ("a" ("b" | "")){0,6}',
            ]
        ),
    ),
    st.builds(
        lambda excludes: {"type": "any_text"} | ({"excludes": excludes} if excludes else {}),
        st.lists(WORDS.filter(str.isascii), max_size=3),
    ),
    st.just(json_schema({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False})),
)


@st.composite
def tags(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> Format:
    return {
        "type": "tag",
        "begin": draw(st.sampled_from(["<a>", "<a>b", "##", ""])),
        "content": draw(inner),
        "end": draw(st.sampled_from(["</a>", ["</a>", "xyx"], ["aba"], "</"])),
    }


@st.composite
def combined(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> Format:
    kind = draw(
        st.sampled_from(["sequence", "or", "optional", "star", "plus", "repeat", "tag", "triggered", "separated"])
    )
    flags = {key: True for key in ("at_least_one", "stop_after_first") if draw(st.booleans())}
    match kind:
        case "sequence" | "or":
            return {"type": kind, "elements": draw(st.lists(inner, min_size=1, max_size=3))}
        case "repeat":
            least = draw(st.integers(0, 7))
            most = draw(st.sampled_from([-1, least or 1, least + 1, least + 9]))
            return {"type": kind, "content": draw(inner), "min": least, "max": most}
        case "tag":
            return draw(tags(inner))
        case "separated":
            several = draw(st.lists(tags(inner), min_size=1, max_size=2))
            return {
                "type": "tags_with_separator",
                "tags": several,
                "separator": draw(st.sampled_from(["", ", "])),
            } | flags
        case "triggered":
            several = draw(st.lists(tags(inner).filter(lambda tag: tag["begin"]), min_size=1, max_size=2))
            triggers = sorted({tag["begin"][:3] for tag in several})
            found: Format = {"type": "triggered_tags", "triggers": triggers, "tags": several} | flags
            excludes = draw(st.lists(st.sampled_from(["</", "<<b", "xyx"]), max_size=2))
            return found | ({"excludes": excludes} if excludes else {})
    return {"type": kind, "content": draw(inner)}


FORMATS: st.SearchStrategy[Any] = st.recursive(SMALL, combined, max_leaves=5)
TEXTS = st.lists(st.sampled_from(["<", "a", ">", "/", "#", "x", "y", "b", "é", "\n", "1", "</a>", "<a>", "{"])).map(
    "".join
)


@settings(STEADY, max_examples=80)
@given(wanted=FORMATS, texts=st.lists(TEXTS, max_size=4), seed=st.integers(0, 2**32))
def test_combined_formats(wanted: Format, texts: list[str], seed: int) -> None:
    assume(checked(wanted).beyond_xgrammar is None)
    # Of what may be empty and comes again and again, xgrammar takes long for more.
    agree(wanted, Random(seed), texts, limit=25)


@pytest.mark.parametrize("form", TOOL_FORMATS)
@pytest.mark.parametrize("choice", [(True, None, True), (True, "stop", True), (False, None, False)])
def test_tool_calls(form: str, choice: tuple[bool, str | None, bool]) -> None:
    needed, name, parallel = choice
    wanted = TOOL_FORMATS[form].constraint(TOOLS, at_least_one=needed, name=name, parallel=parallel)
    if form == "llama3_json" and not needed:
        with pytest.raises(FormatError, match="many characters beyond ASCII"):
            gbnf(checked(wanted).format)
        return
    written = WRITTEN[form]
    texts = (written, f"{written} ", f"Hi {written}", "Hi", "<b>", written[:-1])
    # Its markers hold characters beyond ASCII.
    outputs = agree(wanted, Random(3), texts, narrower=not needed and form.startswith("deepseek"))
    if needed and parallel and name is None:
        assert accepts(both(wanted)[1], written)
    for text in outputs:
        found = run(TOOL_FORMATS[form].parser(TOOLS), [text])
        calls = [item for item in found if item[0] == "call"]
        assert not needed or len(calls) == len(found) > 0
        for _, called, arguments in calls:
            jsonschema.validate(json.loads(arguments), SCHEMAS[called])


@pytest.mark.parametrize("opened", [True, False])
def test_after_reasoning(opened: bool) -> None:
    schema = json_schema(SCHEMAS["get_weather"])
    _, rules = both(THINKING.constraint(schema, opened=opened))
    begin = "" if opened else "<think>"
    value = '{"city": "日本", "unit": "celsius"}'
    assert accepts(rules, f"{begin}Well. <é> {{ </think</think>\n\n{value}")
    assert accepts(rules, value) is not opened
    for other in (f"{begin}</think>{value}x", f"{begin}a</think>b</think>{value}", f"{begin}a</think>\n\n\n{value}"):
        assert not accepts(rules, other)


@pytest.mark.parametrize("beginning", ["<｜x", "<é"])
def test_markers_beyond_ascii(beginning: str) -> None:
    """Where such a marker may have begun, other characters beyond ASCII are left out: they cannot be told from its."""
    _, rules = both({"type": "any_text", "excludes": [f"{beginning}>"]})
    assert accepts(rules, f"日本 < a <<b> {beginning[1:]}> 😀")
    for text in (f"{beginning}>", f"a{beginning}>b", "<日"):
        assert not accepts(rules, text)
    with pytest.raises(FormatError, match="begin with a character beyond ASCII"):
        gbnf(checked({"type": "any_text", "excludes": ["◁x"]}).format)


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"type": "regex", "pattern": r"\S"}, "many characters beyond ASCII"),
        ({"type": "regex", "pattern": "[一-龥]"}, "many characters beyond ASCII"),
        ({"type": "const_string", "value": "a\0"}, "NUL"),
        ({"type": "grammar", "grammar": 'root ::= "a" | root "b"'}, "begins with itself"),
        ({"type": "grammar", "grammar": 'root ::= "a"? x\nx ::= "b" | root "c"'}, "begins with itself"),
        (
            json_schema({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {}]}}}),
            "begins with itself",
        ),
        ({"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": "x" * 401}, "400 characters"),
        (
            json_schema({"enum": [f"{number}" + "日" * 250 for number in range(300)]}),
            "too large as one GBNF grammar: over 262144 characters",
        ),
    ],
)
def test_refusals(wanted: Format, says: str) -> None:
    with pytest.raises(FormatError, match=says):
        gbnf(checked(wanted).format)
    tag = {"type": "sequence", "elements": [wanted, {"type": "const_string", "value": "."}]}
    with pytest.raises(InvalidRequestError, match=says):
        grammar(tag, backends=XGRAMMAR, param="p", kinds=KINDS)


def test_a_line_that_only_ecmascript_would_end() -> None:
    """Of all characters beyond ASCII an old xgrammar cannot leave out two."""
    _, rules = both({"type": "regex", "pattern": "a.b"})
    assert accepts(rules, "a\u2028b")
    assert not accepts(rules, "a\nb")


@pytest.mark.parametrize("text", ["ße", "é0", "\x1fa", "\x7fF", "ÿ\x01b", "日a", "äß9"])
def test_characters_that_xgrammar_prints_by_number(text: str) -> None:
    """And reads again, with the digits that follow."""
    sequence = [{"type": "const_string", "value": char} for char in text]
    for wanted in ({"type": "const_string", "value": text}, {"type": "sequence", "elements": sequence}):
        assert accepts(both(wanted)[1], text)
    _, rules = both({"type": "regex", "pattern": "[\x01f]b[^\x7fe]"})
    assert [accepts(rules, other) for other in ("fbf", "\x01bß", "\x1fba", "fbe")] == [True, True, False, False]


def test_sets_that_begin_with_a_caret() -> None:
    for pattern, members in ((r"[\^_]", "^_"), (r"[\^-a]", "^_`a"), (r"[^\^_]", "ab\n")):
        _, rules = both({"type": "regex", "pattern": pattern})
        assert [char for char in "^_`ab\n" if accepts(rules, char)] == list(members if pattern[1] != "^" else "`ab\n")


def test_large_counts_stay_small() -> None:
    wanted = {"type": "repeat", "content": json_schema({"type": "boolean"}), "min": 900, "max": 1000}
    text = both(wanted)[1].text
    assert len(text) < 10_000
    found = Grammar("ebnf", text)
    assert accepts(found, "true" * 900)
    assert accepts(found, "false" * 1000)
    assert not accepts(found, "true" * 899)
    assert not accepts(found, "true" * 1001)


def test_what_is_said_twice_is_written_once() -> None:
    tools = [
        {"type": "function", "function": {"name": f"tool_{number}", "parameters": SCHEMAS["get_weather"]}}
        for number in range(20)
    ]
    one, all_of_them = (
        len(gbnf(checked(TOOL_FORMATS["hermes"].constraint(some, at_least_one=True, name=None, parallel=True)).format))
        for some in (tools[:1], tools)
    )
    assert all_of_them < 3 * one
