from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.api.common.lenient_json import lenient_value, whole_characters
from tests.unit.output.parsing import check_linear_cost, json_values, moderate

# Code units, halves of pairs included, and what looks like an escape but is none.
_UNITS = st.lists(st.sampled_from(["\ud83d", "\ude00", "\\", "u", "d83d", "\\ude00", "a", "\n", '"', "é"]), max_size=12)


@moderate
@given(units=_UNITS)
def test_halves_of_pairs_become_replacement_characters_and_all_else_stays(units: list[str]) -> None:
    text = "".join(units)
    written = json.dumps(text)
    expected = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert json.loads(whole_characters(written.encode())) == expected
    assert lenient_value(written) == expected


@moderate
@given(value=json_values, ascii_only=st.booleans())
def test_json_is_read_as_it_is(value: Any, ascii_only: bool) -> None:
    written = json.dumps(value, ensure_ascii=ascii_only)
    assert lenient_value(written) == value
    assert json.loads(whole_characters(written.encode())) == value


@moderate
@given(text=st.text(st.sampled_from('\\"/bfnrtu0aé\n\t {}[]:,')))
def test_any_text_is_a_value_or_a_value_error(text: str) -> None:
    for written in (text, f'"{text}"'):
        try:
            value = lenient_value(written)
        except ValueError:
            continue
        json.dumps(value, ensure_ascii=False).encode()


@pytest.mark.parametrize("repeated", ["\\\\", "\\ud83d", "\\ud83d\\ude00", "\\x", '\\"', "\\u"])
def test_long_texts_take_linear_time(repeated: str) -> None:
    def take(length: int) -> None:
        try:
            lenient_value(f'"{repeated * length}')
        except ValueError:
            return
        raise AssertionError("the text has no end")

    check_linear_cost(take)
