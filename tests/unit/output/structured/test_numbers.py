"""Numbers in schemas, regexes and Lark: up to its bound each compiles within the budget; beyond it is a 400 by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.core.engine_types import Grammar
from openai_bls.core.errors import InvalidRequestError
from openai_bls.engines.grammars import vocabulary
from openai_bls.engines.grammars.trials import Trials
from openai_bls.output.structured import grammar
from tests.unit.output.structured.driving import DEMO, EMBEDDED, demo

PARAM = "response_format"
MAX = 2**53


@pytest.fixture(scope="module")
def trials() -> Iterator[Trials]:
    made = Trials(vocabulary.read(DEMO, demo().size, (demo().eos,)).tokens)
    yield made
    made.close()


def magnitudes(most: int) -> st.SearchStrategy[int]:
    """Numbers of every length, and the bound."""
    lengths = st.integers(0, len(str(most)))
    return st.one_of(lengths.flatmap(lambda length: st.integers(0, min(most, 10**length))), st.just(most))


COUNTS = magnitudes(MAX)
LENGTHS = magnitudes(1_000_000)
NUMBERS = st.one_of(COUNTS, COUNTS.map(lambda number: -number), st.floats(-1e12, 1e12))
TEXTS = st.text("abc", max_size=8)
RANGES = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def limited(kind: str, keywords: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"type": st.just(kind)}, optional=keywords)


def patterns() -> st.SearchStrategy[str]:
    """Repetitions within one another."""
    counts = st.integers(0, 1_000)
    repeated = st.tuples(st.sampled_from(["a", "[a-z]", "\\\\d", "(ab|cd)", "."]), counts, counts)
    once = repeated.map(lambda one: f"{one[0]}{{{min(one[1:])},{max(one[1:])}}}")
    return st.lists(st.one_of(once, once.map(lambda one: f"({one})*")), min_size=1, max_size=4).map("".join)


def schemas() -> st.SearchStrategy[dict[str, Any]]:
    leaves = st.one_of(
        limited("integer", {**dict.fromkeys(RANGES, NUMBERS), "multipleOf": magnitudes(10**9)}),
        limited("number", {**dict.fromkeys(RANGES, NUMBERS), "multipleOf": st.sampled_from([0.01, 0.3, 7, 16381])}),
        limited("string", {"minLength": LENGTHS, "maxLength": LENGTHS, "pattern": patterns()}),
        st.builds(lambda text, count: {"enum": [f"{text}{at}" for at in range(count)]}, TEXTS, st.integers(1, 5_000)),
        st.builds(lambda text, count: {"const": text * count}, TEXTS, st.integers(1, 5_000)),
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.fixed_dictionaries(
                {"type": st.just("array"), "items": inner}, optional={"minItems": COUNTS, "maxItems": COUNTS}
            ),
            st.fixed_dictionaries(
                {"type": st.just("object"), "properties": st.dictionaries(TEXTS, inner, max_size=4)},
                optional={"minProperties": COUNTS, "maxProperties": COUNTS},
            ),
            inner.flatmap(lambda one: st.integers(1, 60).map(lambda levels: nested(one, levels))),
        ),
        max_leaves=4,
    )


def nested(schema: dict[str, Any], levels: int) -> dict[str, Any]:
    for _ in range(levels):
        schema = {"type": "array", "items": schema, "maxItems": 3}
    return schema


def compiled_or_refused(format: dict[str, Any]) -> Grammar | InvalidRequestError:  # noqa: A002
    try:
        return grammar(format, EMBEDDED, param=PARAM)
    except InvalidRequestError as error:
        return error


def tried(trials: Trials, format: dict[str, Any]) -> None:  # noqa: A002
    """The format is refused by name, or compiles within the budget; a trial raises if it does not."""
    made = compiled_or_refused(format)
    if isinstance(made, InvalidRequestError):
        assert made.param == PARAM
        return
    lark = made.text if made.kind == "lark" else f"start: %json {made.text}"
    if made.kind == "regex":
        lark = "start: /" + made.text.replace("/", "\\/") + "/"
    assert trials.run("number", lark) >= 0


@settings(max_examples=60, deadline=None)
@given(schema=schemas())
def test_numbers_of_schemas(trials: Trials, schema: dict[str, Any]) -> None:
    tried(trials, {"type": "json_schema", "json_schema": schema})


@settings(max_examples=30, deadline=None)
@given(pattern=patterns())
def test_counts_of_regexes(trials: Trials, pattern: str) -> None:
    tried(trials, {"type": "regex", "pattern": pattern})


@settings(max_examples=30, deadline=None)
@given(least=magnitudes(10**6), more=magnitudes(10**6), inner=st.sampled_from(['"a"', "x", "(x y)", "/[a-z]{1,900}/"]))
def test_counts_of_lark(trials: Trials, least: int, more: int, inner: str) -> None:
    source = f'start: {inner}{{{least},{least + more}}}\nx: "b" | "c" y\ny: /d{{{least % 1000}}}/'
    tried(trials, {"type": "grammar", "grammar": source})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": -MAX, "maximum": MAX},
        {"type": "number", "minimum": -0.123456789, "maximum": 9007199254740991.5},
        {"type": "string", "minLength": 100_000, "maxLength": 1_000_000},
        {"type": "array", "items": {"type": "integer", "multipleOf": 16_381}, "minItems": 10**6, "maxItems": MAX},
        {"type": "integer", "multipleOf": 16_381},
        {"enum": [f"{at}" * 4 for at in range(10_000)]},
        {"const": "x" * 100_000},
    ],
    ids=lambda schema: json.dumps(schema)[:50],
)
def test_at_the_bounds(trials: Trials, schema: dict[str, Any]) -> None:
    tried(trials, {"type": "json_schema", "json_schema": schema})
