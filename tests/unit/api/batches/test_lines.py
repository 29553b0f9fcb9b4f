"""Lines of requests and of results."""

from __future__ import annotations

import codecs
import errno
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.api.batches import lines
from tests.unit.api.batches.support import request
from tests.unit.full_disk import full_disk


def test_half_a_result_is_not_left(tmp_path: Path) -> None:
    path = tmp_path / "results"
    lines.append(path, b"1234\n")
    with full_disk(8), pytest.raises(OSError, check=lambda error: error.errno == errno.ENOSPC):
        lines.append(path, b"12345678\n")
    assert path.read_bytes() == b"1234\n"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"stream": false, "background": null}', None),
        (b'{"stream": 0, "background": []}', None),
        (b'{"stream": true}', "unsupported_parameter"),
        (b'{"background": {"a": 1}}', "unsupported_parameter"),
        (b'{"stream": "%s"}' % (b"x" * 100), "unsupported_parameter"),
        (b"[1]", "invalid_json_line"),
        (b'{"a": "\xff"}', "invalid_json_line"),
        (b'{"a": ' + b"[" * 100_000 + b"}", "invalid_json_line"),
    ],
)
def test_fields_of_a_body_that_a_batch_looks_at(body: bytes, code: str | None) -> None:
    text = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": %s}' % body
    if code is None:
        assert bytes(lines.parse(text).body) == body
        return
    with pytest.raises(lines.LineError) as raised:
        lines.parse(text)
    assert raised.value.code == code


@given(st.lists(st.integers(0, 20)), st.integers(1, 60))
def test_all_lines_are_read_once_in_small_parts(sizes: list[int], most: int) -> None:
    """Lines of some sizes, of which several come at a time if they are `most` bytes together."""
    texts = [b"x" * size + b"\n" for size in sizes]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.jsonl"
        path.write_bytes(b"".join(texts))
        start, found = 0, []
        while read := lines.read(path, start, 100, most):
            assert len(read) == 1 or sum(len(place.text) for place in read) <= most
            found += read
            start = read[-1].end
    assert [place.text for place in found] == [text for text in texts if text.strip()]
    whole = b"".join(texts)
    assert all(whole[place.start : place.end] == place.text for place in found)


def test_a_byte_order_mark_is_no_part_of_a_line() -> None:
    text = json.dumps(request("a")).encode()
    assert lines.parse(codecs.BOM_UTF8 + text) == lines.parse(text)


def test_a_line_that_is_too_long_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"a\n" + b"x" * 15_000 + b"\nb\n\nc")
    found = list(lines.texts(path, 1))
    assert [(number, text[:1]) for number, text in found] == [(1, b"a"), (2, b"x"), (3, b"b"), (5, b"c")]


def test_a_result_is_one_line_and_counts_whatever_its_body_is() -> None:
    line = lines.parse(json.dumps(request("a")).encode())
    for body, tokens in (
        ({"usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}}, (3, 2)),
        ({"usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": None}}}, (0, 0)),
        ({"usage": "much"}, (0, 0)),
    ):
        text = lines.result(line, 200, "r", json.dumps(body, indent=2).encode())
        assert text.count(b"\n") == 1
        tally = lines.Tally()
        assert tally.add(text) == "a"
        assert (tally.count, tally.input_tokens, tally.cached_tokens) == (1, *tokens)
