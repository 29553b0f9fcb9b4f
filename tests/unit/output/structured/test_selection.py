"""The form of a grammar for the embedded engine, and what is refused; sizes, depths, and what an import brings."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.core.errors import InvalidRequestError
from openai_bls.output.structured import grammar
from tests.unit.core_support import engine_info
from tests.unit.output.structured.driving import accepts, json_schema, made

SIMPLE = json_schema({"type": "integer"})
HARDER = json_schema({"type": "integer", "multipleOf": 3})
TEXT = {"type": "const_string", "value": "a"}
GBNF = {"type": "grammar", "grammar": 'root ::= "a" root | "b"'}


@pytest.mark.parametrize(
    ("wanted", "kind"),
    [
        (SIMPLE, "json_schema"),
        (HARDER, "json_schema"),
        ({"type": "regex", "pattern": "a{1,5000}"}, "regex"),
        (GBNF, "lark"),
        ({"type": "grammar", "grammar": "start: /a/"}, "lark"),
        ({"type": "or", "elements": [HARDER, TEXT]}, "lark"),
        ({"type": "sequence", "elements": [GBNF, HARDER]}, "lark"),
        ({"type": "structural_tag", "format": SIMPLE}, "json_schema"),
    ],
)
def test_the_form(wanted: dict[str, Any], kind: str) -> None:
    found = made(wanted)
    assert found.kind == kind
    if kind == "json_schema":
        json.loads(found.text)
    assert made(wanted) is found  # from the cache


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"type": "grammar", "grammar": "start: b"}, "b"),
        ({"type": "grammar", "grammar": ""}, "with something in it"),
        ({"type": "grammar", "grammar": 'start: %json {"not": {}}'}, "not"),
        ({"type": "sequence", "elements": [{"type": "grammar", "grammar": "start: /a/"}]}, "a Lark grammar cannot"),
        ({"type": "sequence", "elements": [{"type": "any_text"}, HARDER]}, "must come last"),
        ({"type": "regex", "pattern": "("}, "missing ')'"),
        ({"type": "regex", "pattern": "^$"}, "nothing but the empty text"),
        ({"type": "token", "token": 3}, 'formats of type "token" are not supported'),
        ({"type": "dispatch", "rules": []}, "are not supported"),
        ({"type": "qwen_xml_parameter", "json_schema": {}}, "are not supported"),
        ({"type": "json_schema", "json_schema": {}, "style": "x_xml"}, "'style'"),
        ({**json_schema({"type": "array"}), "style": "qwen_xml"}, "written as XML must be an object"),
        (
            {**json_schema({"properties": {"a": {"minLength": 1}}}), "style": "qwen_xml"},
            "'minLength' cannot be enforced in JSON that is written as XML",
        ),
        ({**HARDER, "style": "qwen_xml"}, "'multipleOf' cannot be enforced in JSON that is written as XML"),
        ({"type": "json_schema", "json_schema": {}, "any_order": True}, "'any_order'"),
        ({"type": "json_schema"}, "needs a 'json_schema'"),
        ({"type": "json_schema", "json_schema": {}, "x": 1}, 'has no "x"'),
        ({"type": "tag", "begin": {"type": "token", "token": 1}, "content": TEXT, "end": ""}, "'begin', a string"),
        ({"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": ""}, "needs an 'end'"),
        ({"type": "tag", "begin": "", "content": TEXT, "end": []}, "'end'"),
        ({"type": "any_text", "max_tokens": 3}, "'max_tokens'"),
        ({"type": "any_text", "excludes": [""]}, "'excludes'"),
        ({"type": "sequence", "elements": []}, "'elements'"),
        ({"type": "star"}, "a format is an object"),
        ({"type": "repeat", "content": TEXT, "min": 3, "max": 2}, "in order"),
        ({"type": "repeat", "content": TEXT, "min": 0, "max": 10**6}, "integers up to"),
        ({"type": "repeat", "content": TEXT, "min": True, "max": 2}, "integers up to"),
        ({"type": "tags_with_separator", "tags": [TEXT], "separator": ","}, "must be tags"),
        ({"type": "triggered_tags", "triggers": ["<"], "tags": []}, "'tags'"),
        ({"type": "structural_tag"}, "either 'format', or 'structures' and 'triggers'"),
        ({"type": ["x"]}, "a format is an object with a 'type'"),
        (json_schema({"const": "\ud800"}), "not JSON"),
        (json_schema({"description": "x" * 300_000}), "too large: "),
        (
            json_schema({"allOf": [{"anyOf": [{"properties": {f"{i}{j}": {}}} for j in range(4)]} for i in range(7)]}),
            "too",
        ),
    ],
)
def test_refusals(wanted: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        made(wanted)
    assert caught.value.param == "response_format"
    assert says in caught.value.message
    assert len(caught.value.message) <= 600
    assert "\n" not in caught.value.message
    assert "/home/" not in caught.value.message


def nested(depth: int, key: str = "items") -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", key: schema} if key == "items" else {key: [schema]}
    return json_schema(schema)


@pytest.mark.parametrize("key", ["items", "anyOf"])
def test_nesting_is_bounded(key: str) -> None:
    made(nested(40, key))
    for depth in (200, 100_000):
        with pytest.raises(InvalidRequestError, match="deep"):
            made(nested(depth, key))


# What a client may send as an integer has no bound, and texts may be long in the places where it hurts.
NUMBERS = st.integers() | st.sampled_from([2**53 + 1, 2**64, 2**1024, -(10**400)]) | st.floats(allow_nan=False)
REPEATED = ["#", "(", "a ", "a?", "{1,", "\n", " ", r"\W", "[^a]", "|"]
LONG = st.builds(
    "{}{}{}".format,
    st.sampled_from(["", "root ::= ", 'root ::= "a"', "start: ", "["]),
    st.builds(str.__mul__, st.sampled_from(REPEATED), st.integers(0, 3_000)),
    st.sampled_from(["", "b", "\na ::= root", ")", "]", "}"]),
)
CHAINS = st.builds(
    lambda length, last: "root ::= r0\n" + "".join(f"r{at} ::= r{at + 1}\n" for at in range(length)) + last,
    st.integers(0, 1_500),
    st.sampled_from(["", 'r1500 ::= "a"', "r1500 ::= root"]),
)


NESTED = st.integers(0, 300).map(lambda depth: nested(depth)["json_schema"])
KEYS = [
    *("type", "json_schema", "pattern", "elements", "content", "tags", "begin", "end", "$ref", "enum", "anyOf"),
    *("properties", "items", "required", "minimum", "multipleOf", "const", "minLength", "grammar", "excludes"),
    *("triggers", "$defs"),
]
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8) | LONG | CHAINS | NESTED,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(KEYS)), inner, max_size=4),
    max_leaves=12,
)
KINDS = st.sampled_from(["json_schema", "regex", "grammar", "sequence", "or", "tag", "triggered_tags", "any_text"])


@settings(deadline=None, max_examples=300)
@given(kind=KINDS, rest=JSON, schema=JSON)
def test_nothing_but_a_client_error_comes_of_nonsense(kind: str, rest: Any, schema: Any) -> None:
    fields = rest if isinstance(rest, dict) else {"pattern": rest, "grammar": rest, "elements": rest}
    for wanted in ({**fields, "type": kind}, {"type": "json_schema", "json_schema": schema}, rest):
        with contextlib.suppress(InvalidRequestError):
            made(wanted)


def test_an_import_is_light() -> None:
    code = (
        "import sys\n"
        "from openai_bls.core.engine_types import EngineInfo\n"
        "from openai_bls.output.structured import grammar\n"
        "info = EngineInfo('fake', 'm', 9, 1, 9, (), grammar_backend='llguidance')\n"
        "grammar({'type': 'json_schema', 'json_schema': {'type': 'string', 'minLength': 1}}, info, param='p')\n"
        "print(*({'torch', 'transformers', 'xgrammar', 'numpy', 'tokenizers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_it_works_without_llguidance_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    assert made(json_schema({"type": "string", "minLength": 1, "title": "unseen"})).kind == "json_schema"


def test_an_engine_without_grammars() -> None:
    with pytest.raises(InvalidRequestError, match="no grammars") as refused:
        grammar(SIMPLE, engine_info(grammar_backend=""), param="p")
    assert refused.value.param == "p"


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=6), min_size=1, max_size=4
    ),
    st.text(max_size=3),
)
def test_a_choice(words: list[str], other: str) -> None:
    found = made({"type": "or", "elements": [{"type": "const_string", "value": word} for word in words]})
    for word in words:
        assert accepts(found, word)
    assert accepts(found, other) == (other in words)
