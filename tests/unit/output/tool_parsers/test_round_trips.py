"""What a chat template writes of an assistant's calls is read back as these calls, in every form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.output.detect import HARMONY, TOOL_FORMATS, detect
from tests.unit.output.parsing import cut, cut_lengths, run
from tests.unit.output.tool_parsers.chat_templates import TEMPLATES, written
from tests.unit.output.tool_parsers.texts.xml_families import SCHEMA

STOP = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
PROPERTIES = {**SCHEMA["properties"], "stops": {"type": "array", "items": {"$ref": "#/$defs/stop"}}}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {"name": "weather", "parameters": {**SCHEMA, "properties": PROPERTIES, "$defs": {"stop": STOP}}},
    },
    {"type": "function", "function": {"name": "stop-2"}},
]
# Names of members where they stand without quotes.
NAMES = st.sampled_from(["a", "b_1", "name", "city"])
# `<` begins what ends a value written as it is; the line breaks around one may be the template's.
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<"), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
WEATHER = st.fixed_dictionaries(
    {},
    optional={
        "city": TEXTS,
        "days": st.integers(),
        "metric": st.booleans(),
        "where": st.dictionaries(NAMES, VALUES, max_size=3),
        "unit": st.sampled_from(["C", "F"]),
        "stops": st.lists(st.fixed_dictionaries({}, optional={"city": TEXTS, "days": st.integers()}), max_size=3),
        "note": st.none() | TEXTS.filter(lambda text: text.strip() not in ("", "null", "None")),
    },
)
CALLS = st.lists(
    st.tuples(st.just("weather"), WEATHER) | st.tuples(st.just("stop-2"), st.just({})), min_size=1, max_size=3
)


def test_every_form_has_a_template_that_is_told_by_its_signs() -> None:
    assert TEMPLATES.keys() == {*TOOL_FORMATS, HARMONY}
    for form, template in TEMPLATES.items():
        formats = detect(template)
        assert formats.tool_format is not None, form
        assert formats.tool_format.name == form
        assert not formats.unknown_calls


@pytest.mark.parametrize("form", TEMPLATES)
@settings(deadline=None, max_examples=30)
@given(calls=CALLS, says=st.booleans(), lengths=cut_lengths)
def test_calls_come_back_as_they_were(
    form: str, calls: list[tuple[str, dict[str, Any]]], says: bool, lengths: list[int]
) -> None:
    formats = detect(TEMPLATES[form])
    assert formats.tool_format is not None
    content = "I look." if says and form != HARMONY and not formats.tool_format.only_at_start else ""
    calls = calls[:1] if form == HARMONY else calls
    if form == "minimax_m3":
        # Its tags do not say the types of what no schema has.
        calls = [(name, {**given, **({"where": {}} if "where" in given else {})}) for name, given in calls]
    text = written(form, calls, content, TOOLS)
    for pieces in ([text], list(text), cut(text, lengths)):
        parser = formats.parsers(tools=TOOLS, reasoning_open=False)()
        assert parser is not None
        found = run(parser, pieces)
        told = "".join(one[1] for one in found if one[0] == "content")
        assert told.strip() == content
        assert [(one[1], json.loads(one[2])) for one in found if one[0] == "call"] == calls
