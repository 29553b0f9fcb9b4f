"""The input of a custom tool is decoded the same however its arguments are cut, and nothing of them is lost."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.output.tool_parsers.custom_input import InputDecoder

# Half a surrogate pair is no text of a model.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
PIECES = st.sampled_from(
    [
        '{"input": "',
        '"',
        '"}',
        "\\",
        "\\u",
        "\\ud83d",
        "\\ude00",
        "\\n",
        "}",
        " ",
        "{",
        "[",
        "\n",
        "x",
        '\\"',
        "\\u00e9",
    ]
)


def decoded(fragments: list[str]) -> str:
    decoder = InputDecoder()
    return "".join(map(decoder.push, fragments)) + decoder.finish()


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted({place % (len(text) + 1) for place in places})
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


@given(TEXTS, st.booleans(), st.sampled_from([", ", ","]), st.lists(st.integers(0, 1000)))
def test_the_string_is_the_input_however_it_is_cut(text: str, ascii_only: bool, spaces: str, places: list[int]) -> None:
    written = json.dumps({"input": text}, ensure_ascii=ascii_only, separators=(spaces, ": " if spaces == ", " else ":"))
    assert decoded(cut(written, places)) == text
    assert decoded(cut(f"\n{written} \n", places)) == text


@given(st.lists(st.one_of(PIECES, TEXTS)).map("".join), st.lists(st.integers(0, 1000)))
def test_no_cut_changes_anything(text: str, places: list[int]) -> None:
    assert decoded(cut(text, places)) == decoded([text]) == decoded(list(text))


@given(TEXTS)
def test_any_other_text_is_the_input_as_it_is(text: str) -> None:
    if '"input"' not in text and "".join(text.split()) != "{}":
        assert decoded(list(text)) == text


@given(TEXTS.filter(lambda text: '"' not in text and "\\" not in text))
def test_what_is_cut_off_keeps_its_text(text: str) -> None:
    assert decoded([f'{{"input": "{text}']) == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "C:\\dir \\q"}', "C:\\dir \\q"),
        ('{"input": "a\nb\tc"}', "a\nb\tc"),
        ('{"input": "say "hi" now"}', 'say "hi" now'),
        ('{"input": "{"a": 1}"}', '{"a": 1}'),
        ('{"input": "\\ud83d"}', "\\ud83d"),
        ('{"input": "\\ud83d\\ude00"}', "😀"),
        ('{"input": "\\ud83d\\u00e9"}', "\\ud83dé"),
        ('{"input": "a\\u00', "a\\u00"),
        ('{"input": "a"} b', 'a"} b'),
        ('["a", "b"]', '["a", "b"]'),
        ('{"input": 1}', '{"input": 1}'),
        ('{"text": "a"}', '{"text": "a"}'),
        ('{"inp', '{"inp'),
        ("{}", ""),
        ("", ""),
    ],
)
def test_what_models_write_by_mistake(arguments: str, text: str) -> None:
    assert decoded(list(arguments)) == text


def test_a_flood_of_white_space_is_read_in_linear_time() -> None:
    assert decoded([" "] * 100_000) == " " * 100_000
    assert decoded(['{"input": "a"', *[" "] * 200_000, "}"]) == "a"
