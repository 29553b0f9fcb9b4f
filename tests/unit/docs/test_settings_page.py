"""docs/reference/settings.md has every setting, in the words of the structs."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
import pytest

from openai_bls.api.openapi.field_docs import field_docs
from tests.unit.docs import settings_page
from tests.unit.docs.settings_page import CHART_SCHEMA, PAGE, TABLES


def test_the_page_is_that_of_the_structs() -> None:
    """`python -m tests.unit.docs.settings_page` writes it."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == settings_page.written(page)


def test_the_chart_takes_the_settings_of_the_structs() -> None:
    """The same command writes its schema."""
    schema = CHART_SCHEMA.read_text(encoding="utf-8")
    assert schema == settings_page.chart_schema(schema)
    assert '"http_ui"' in schema


@pytest.mark.parametrize("title", TABLES)
def test_every_setting_has_a_sentence_that_stands_alone(title: str) -> None:
    settings = TABLES[title].settings
    said = field_docs(settings)
    assert set(said) == set(settings.__struct_fields__)
    assert not [text for text in said.values() if re.match(r"(Of|Its|Those|The same|What)\b", text)]


def test_a_setting_without_a_row_is_found() -> None:
    page = PAGE.read_text(encoding="utf-8")
    less = re.sub(r"^\| `http_port`.*\n", "", page, flags=re.MULTILINE)
    assert less != page
    assert settings_page.written(less) == page


@pytest.mark.parametrize(
    ("hint", "name"),
    [
        (bool | None, "true or false"),
        (Annotated[int, msgspec.Meta(ge=0, le=9)], "integer from 0 to 9"),
        (Annotated[float, msgspec.Meta(gt=0, lt=1)] | None, "number above 0 below 1"),
        (Literal["", "a"], "empty, `a`"),
    ],
)
def test_types_in_words(hint: object, name: str) -> None:
    assert settings_page.type_name(hint) == name
