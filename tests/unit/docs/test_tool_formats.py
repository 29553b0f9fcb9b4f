"""The page of tools names every form of calls that there is, and no other, and says of each what the code says."""

from __future__ import annotations

from openai_bls.output.detect import HARMONY, TOOL_FORMATS
from openai_bls.output.reasoning_forms import REASONINGS
from tests.unit.docs import tool_formats
from tests.unit.docs.pages import code


def test_the_table_has_every_form_of_calls() -> None:
    page = tool_formats.PAGE.read_text(encoding="utf-8")
    assert sorted(tool_formats.names(page)) == sorted([*TOOL_FORMATS, HARMONY])


def test_the_table_is_that_of_the_registry() -> None:
    """`python -m tests.unit.docs.tool_formats` writes it."""
    page = tool_formats.PAGE.read_text(encoding="utf-8")
    assert tool_formats.written(page) == page
    worse = page.replace(" | as they are |", " | JSON array |").replace("`think`", "`mistral`")
    assert worse != page
    assert tool_formats.written(worse).partition("\n## Reasoning")[0] == page.partition("\n## Reasoning")[0]


def test_the_page_names_every_form_of_thoughts() -> None:
    _, _, section = tool_formats.PAGE.read_text(encoding="utf-8").partition("\n## Reasoning\n")
    assert REASONINGS.keys() <= set(code(section))
