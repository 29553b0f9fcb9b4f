"""Every template of llama.cpp's and vLLM's collections gives the forms of calls and thoughts that its models write."""

from __future__ import annotations

from collections import Counter

import pytest

from openai_bls.output.detect import detect
from tests.unit.output.chat_templates.rows import names, read, table

ROWS = table()


def test_both_collections_are_there() -> None:
    assert Counter(name.partition("/")[0] for name in ROWS) == {"llama.cpp": 70, "vllm": 35}


@pytest.mark.parametrize("name", ROWS)
def test_the_forms_are_those_of_the_models(name: str) -> None:
    row = ROWS[name]
    found = detect(row.template)
    assert names(found) == (row.calls, row.thoughts)
    assert found.unknown_calls is (row.calls is None and row.tools)
    assert found.unknown_reasoning is (row.thoughts is None and row.thinks)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_read_as_it_was_written(name: str) -> None:
    row = ROWS[name]
    assert set(row.marks) <= set(read(row.template, row).marks)
    assert read(row.template) == read(row.template, row)
