"""Which library gets a format, in which form, and what is refused; sizes, depths, and what an import brings."""

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
from tests.unit.output.structured.driving import BOTH, LLGUIDANCE, XGRAMMAR, accepts, json_schema, made

SIMPLE = json_schema({"type": "integer"})
HARDER = json_schema({"type": "integer", "multipleOf": 3})
TEXT = {"type": "const_string", "value": "a"}
GBNF = {"type": "grammar", "grammar": 'root ::= "a" root | "b"'}


@pytest.mark.parametrize(
    ("wanted", "backends", "backend", "kind"),
    [
        (SIMPLE, BOTH, "xgrammar", "ebnf"),
        (SIMPLE, LLGUIDANCE, "llguidance", "json_schema"),
        (HARDER, BOTH, "llguidance", "json_schema"),
        ({"type": "regex", "pattern": "a+"}, BOTH, "xgrammar", "ebnf"),
        ({"type": "regex", "pattern": "a+"}, LLGUIDANCE, "llguidance", "regex"),
        ({"type": "regex", "pattern": "a{1,5000}"}, BOTH, "llguidance", "regex"),
        (GBNF, BOTH, "xgrammar", "ebnf"),
        (GBNF, LLGUIDANCE, "llguidance", "lark"),
        ({"type": "grammar", "grammar": "start: /a/"}, BOTH, "llguidance", "lark"),
        ({"type": "or", "elements": [SIMPLE, TEXT]}, BOTH, "xgrammar", "structural_tag"),
        ({"type": "or", "elements": [HARDER, TEXT]}, BOTH, "llguidance", "lark"),
        ({"type": "sequence", "elements": [GBNF, SIMPLE]}, BOTH, "xgrammar", "structural_tag"),
        ({"type": "structural_tag", "format": SIMPLE}, BOTH, "xgrammar", "ebnf"),
    ],
)
def test_the_choice(wanted: dict[str, Any], backends: tuple[str, ...], backend: str, kind: str) -> None:
    found = made(wanted, backends)
    assert (found.backend, found.kind) == (backend, kind)
    if kind in ("json_schema", "structural_tag"):
        json.loads(found.text)
    assert made(wanted, list(reversed(backends))) is found  # from the cache


@pytest.mark.parametrize(
    ("wanted", "backends", "says"),
    [
        (SIMPLE, (), "neither xgrammar nor llguidance is installed"),
        (HARDER, XGRAMMAR, "'multipleOf' cannot be enforced here: it would take llguidance"),
        ({"type": "regex", "pattern": "a{1,5000}"}, XGRAMMAR, "it would take llguidance"),
        ({"type": "grammar", "grammar": "start: /a/"}, XGRAMMAR, "a Lark grammar takes llguidance"),
        ({"type": "grammar", "grammar": "start: b"}, BOTH, "b"),
        ({"type": "grammar", "grammar": ""}, BOTH, "with something in it"),
        ({"type": "grammar", "grammar": 'start: %json {"not": {}}'}, BOTH, "not"),
        (
            {"type": "sequence", "elements": [{"type": "grammar", "grammar": "start: /a/"}]},
            BOTH,
            "a Lark grammar cannot",
        ),
        ({"type": "sequence", "elements": [GBNF, HARDER]}, BOTH, "cannot be parts of one format"),
        ({"type": "sequence", "elements": [{"type": "any_text"}, HARDER]}, BOTH, "must come last"),
        ({"type": "regex", "pattern": "("}, BOTH, "missing ')'"),
        ({"type": "regex", "pattern": "^$"}, BOTH, "nothing but the empty text"),
        ({"type": "token", "token": 3}, BOTH, 'formats of type "token" are not supported'),
        ({"type": "dispatch", "rules": []}, BOTH, "are not supported"),
        ({"type": "qwen_xml_parameter", "json_schema": {}}, BOTH, "are not supported"),
        ({"type": "json_schema", "json_schema": {}, "style": "glm_xml"}, BOTH, "'style'"),
        ({"type": "json_schema", "json_schema": {}, "style": "qwen_xml"}, LLGUIDANCE, "takes xgrammar"),
        ({**HARDER, "style": "qwen_xml"}, BOTH, "'multipleOf' cannot be enforced in JSON that is written as XML"),
        (
            {"type": "or", "elements": [HARDER, {**SIMPLE, "style": "qwen_xml"}]},
            BOTH,
            "'multipleOf' cannot be enforced beside JSON that is written as XML",
        ),
        ({"type": "json_schema", "json_schema": {}, "any_order": True}, BOTH, "'any_order'"),
        ({"type": "json_schema"}, BOTH, "needs a 'json_schema'"),
        ({"type": "json_schema", "json_schema": {}, "x": 1}, BOTH, 'has no "x"'),
        (
            {"type": "tag", "begin": {"type": "token", "token": 1}, "content": TEXT, "end": ""},
            BOTH,
            "'begin', a string",
        ),
        ({"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": ""}, BOTH, "needs an 'end'"),
        ({"type": "tag", "begin": "", "content": TEXT, "end": []}, BOTH, "'end'"),
        ({"type": "any_text", "max_tokens": 3}, BOTH, "'max_tokens'"),
        ({"type": "any_text", "excludes": [""]}, BOTH, "'excludes'"),
        ({"type": "sequence", "elements": []}, BOTH, "'elements'"),
        ({"type": "star"}, BOTH, "a format is an object"),
        ({"type": "repeat", "content": TEXT, "min": 3, "max": 2}, BOTH, "in order"),
        ({"type": "repeat", "content": TEXT, "min": 0, "max": 10**6}, BOTH, "integers up to"),
        ({"type": "repeat", "content": TEXT, "min": True, "max": 2}, BOTH, "integers up to"),
        ({"type": "tags_with_separator", "tags": [TEXT], "separator": ","}, BOTH, "must be tags"),
        ({"type": "triggered_tags", "triggers": ["<"], "tags": []}, BOTH, "'tags'"),
        ({"type": "structural_tag"}, BOTH, "either 'format', or 'structures' and 'triggers'"),
        ({"type": ["x"]}, BOTH, "a format is an object with a 'type'"),
        (json_schema({"const": "\ud800"}), BOTH, "not JSON"),
        (json_schema({"description": "x" * 300_000}), BOTH, "too large: "),
        (
            json_schema({"allOf": [{"anyOf": [{"properties": {f"{i}{j}": {}}} for j in range(4)]} for i in range(7)]}),
            BOTH,
            "too",
        ),
    ],
)
def test_refusals(wanted: dict[str, Any], backends: tuple[str, ...], says: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        made(wanted, backends)
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


@pytest.mark.parametrize("backends", [XGRAMMAR, LLGUIDANCE], ids="".join)
@pytest.mark.parametrize("key", ["items", "anyOf"])
def test_nesting_is_bounded(backends: tuple[str, ...], key: str) -> None:
    made(nested(40, key), backends)
    for depth in (200, 100_000):
        with pytest.raises(InvalidRequestError, match="nested too deeply"):
            made(nested(depth, key), backends)


# What a client may send as an integer has no bound, and texts may be long in the places where it hurts.
NUMBERS = st.integers() | st.sampled_from([2**53 + 1, 2**64, 2**1024, -(10**400)]) | st.floats(allow_nan=False)
REPEATED = ["#", "(", "a ", "a?", "{1,", "\n", " ", r"\W", "[^a]", "|"]
LONG = st.builds(
    "{}{}{}".format,
    st.sampled_from(["", "root ::= ", 'root ::= "a"', "start: ", "["]),
    st.builds(
        str.__mul__,
        st.sampled_from(["#", "(", "a ", "a?", "{1,", "\n", " ", r"\W", "[^a]", "|"]),
        st.integers(0, 3_000),
    ),
    st.sampled_from(["", "b", "\na ::= root", ")", "]", "}"]),
)
CHAINS = st.builds(
    lambda length, last: "root ::= r0\n" + "".join(f"r{at} ::= r{at + 1}\n" for at in range(length)) + last,
    st.integers(0, 1_500),
    st.sampled_from(["", 'r1500 ::= "a"', "r1500 ::= root"]),
)


def arrays(depth: int) -> Any:
    return nested(depth)["json_schema"]


NESTED = st.builds(arrays, st.integers(0, 300))
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8) | LONG | CHAINS | NESTED,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                sorted(
                    [
                        "type",
                        "json_schema",
                        "pattern",
                        "elements",
                        "content",
                        "tags",
                        "begin",
                        "end",
                        "$ref",
                        "enum",
                        "anyOf",
                        "properties",
                        "items",
                        "required",
                        "minimum",
                        "multipleOf",
                        "const",
                        "minLength",
                        "grammar",
                        "excludes",
                        "triggers",
                        "$defs",
                    ]
                )
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
KINDS = st.sampled_from(["json_schema", "regex", "grammar", "sequence", "or", "tag", "triggered_tags", "any_text"])


@settings(deadline=None, max_examples=300)
@given(kind=KINDS, rest=JSON, schema=JSON)
def test_nothing_but_a_client_error_comes_of_nonsense(kind: str, rest: Any, schema: Any) -> None:
    fields = rest if isinstance(rest, dict) else {"pattern": rest, "grammar": rest, "elements": rest}
    for wanted in ({**fields, "type": kind}, {"type": "json_schema", "json_schema": schema}, rest):
        with contextlib.suppress(InvalidRequestError):
            grammar(wanted, backends=BOTH, param="p")


def test_an_import_is_light() -> None:
    code = (
        "import sys\n"
        "from openai_bls.output.structured import grammar\n"
        "grammar({'type': 'json_schema', 'json_schema': {'type': 'string', 'minLength': 1}},"
        " backends=['llguidance'], param='p')\n"
        "print(*({'torch', 'transformers', 'xgrammar', 'numpy', 'tokenizers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_it_works_without_llguidance_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    assert made(json_schema({"type": "integer", "title": "unseen"}), XGRAMMAR).backend == "xgrammar"
    assert made(json_schema({"type": "string", "minLength": 1, "title": "unseen"})).backend == "llguidance"


FEW_KINDS = ("json_schema", "regex", "ebnf")


def choice(words: list[str]) -> dict[str, Any]:
    return {"type": "or", "elements": [{"type": "const_string", "value": word} for word in words]}


EITHER = {"type": "or", "elements": [SIMPLE, TEXT]}


def test_a_structural_tag_as_gbnf() -> None:
    found = grammar(EITHER, backends=XGRAMMAR, param="p", kinds=FEW_KINDS)
    assert (found.backend, found.kind) == ("xgrammar", "ebnf")
    assert [accepts(found, text) for text in ("-12", "a", "", "a1")] == [True, True, False, False]
    assert grammar(EITHER, backends=XGRAMMAR, param="p", kinds=(*FEW_KINDS, "structural_tag")).kind == "structural_tag"
    harder = {"type": "or", "elements": [HARDER, TEXT]}
    with pytest.raises(InvalidRequestError, match="'multipleOf' cannot be enforced here"):
        grammar(harder, backends=XGRAMMAR, param="p", kinds=FEW_KINDS)
    with pytest.raises(InvalidRequestError, match="it takes structural tags"):
        grammar(harder, backends=BOTH, param="p", kinds=FEW_KINDS)


def test_an_engine_without_structural_tags() -> None:
    for wanted in (SIMPLE, GBNF, {"type": "regex", "pattern": "a+"}):
        # An old xgrammar might not survive what is a client's own.
        assert grammar(wanted, backends=XGRAMMAR, param="p", kinds=FEW_KINDS).kind == "ebnf"
    whole = (*FEW_KINDS, "structural_tag")
    assert grammar(SIMPLE, backends=XGRAMMAR, param="p", kinds=whole).kind == "ebnf"
    assert grammar({"type": "regex", "pattern": "\\S"}, backends=XGRAMMAR, param="p", kinds=whole).kind == "regex"
    with pytest.raises(InvalidRequestError, match="many characters beyond ASCII, but not all"):
        grammar({"type": "regex", "pattern": "\\S"}, backends=XGRAMMAR, param="p", kinds=FEW_KINDS)
    with pytest.raises(
        InvalidRequestError,
        match=r"'tools': it takes structural tags, .*: it has JSON schemas, regular expressions",
    ) as e:
        grammar(EITHER, backends=XGRAMMAR, param="tools", kinds=("json_schema", "regex"))
    assert e.value.param == "tools"
    with pytest.raises(InvalidRequestError, match="it takes Lark grammars"):
        grammar({"type": "grammar", "grammar": "start: /a/"}, backends=LLGUIDANCE, param="p", kinds=("regex",))


@pytest.mark.parametrize(
    ("kinds", "says"), [(("regex",), "it takes structural tags"), (FEW_KINDS, "the character NUL")]
)
def test_a_choice_that_neither_can_hold(kinds: tuple[str, ...], says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        grammar(choice(["a\x00"]), backends=XGRAMMAR, param="p", kinds=kinds)


def test_no_tags_in_disguise() -> None:
    """llguidance spells a structural tag in Lark."""
    kinds = ("json_schema", "regex", "lark")
    tag = {"type": "sequence", "elements": [TEXT, SIMPLE]}
    assert grammar(tag, backends=LLGUIDANCE, param="p").kind == "lark"
    with pytest.raises(InvalidRequestError, match="it takes structural tags"):
        grammar(tag, backends=LLGUIDANCE, param="p", kinds=kinds)
    for source in (GBNF, {"type": "grammar", "grammar": "start: /a/"}):
        assert grammar(source, backends=LLGUIDANCE, param="p", kinds=kinds).kind == "lark"
    assert grammar(choice(["a", "b"]), backends=LLGUIDANCE, param="p", kinds=kinds).kind == "regex"


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=6), min_size=1, max_size=4
    ),
    st.text(max_size=3),
)
def test_a_choice_is_a_regex_or_gbnf_there(words: list[str], other: str) -> None:
    for kinds, kind in ((("json_schema", "regex"), "regex"), (FEW_KINDS, "ebnf")):
        found = grammar(choice(words), backends=XGRAMMAR, param="p", kinds=kinds)
        assert found.kind == kind
        for word in words:
            assert accepts(found, word)
        assert accepts(found, other) == (other in words)
