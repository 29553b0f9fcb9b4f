"""Forms: what their parser does goes by their bytes, whatever they are made of, and a form as it should be is read."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from python_multipart.multipart import MultipartParser
from starlette.datastructures import FormData, Headers, UploadFile

from openai_bls.api.http.forms import MAX_BOUNDARIES, MAX_PADDING_BYTES, MAX_TYPE_BYTES, read_form
from openai_bls.core.errors import InvalidRequestError

FILE = b'--y\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
END = b"\r\n--y--\r\n"


async def form_of(pieces: Sequence[bytes], kind: str = "multipart/form-data; boundary=y") -> FormData:
    async def stream() -> AsyncGenerator[bytes, None]:
        for piece in pieces:
            yield piece

    return await read_form(Headers({"content-type": kind}), stream(), 16)


def cut(body: bytes, places: Sequence[int]) -> list[bytes]:
    return [
        body[start:end] for start, end in pairwise(sorted({0, *(at % (len(body) + 1) for at in places), len(body)}))
    ]


PLACES = st.lists(st.integers(0, 1 << 20), max_size=5)
CONTENTS = st.lists(st.sampled_from([b"x", b"-", b"--", b"\r\n", b"\r\n-", b"\r\n--", b" ", b"--y"])).map(b"".join)


@settings(deadline=None)
@given(CONTENTS, PLACES, st.integers(0, MAX_PADDING_BYTES))
def test_a_form_is_read_whatever_pieces_it_comes_in(content: bytes, places: list[int], padding: int) -> None:
    if b"\r\n--y" in b"\r\n" + content:
        content = content.replace(b"y", b"z")
    field = b'\r\n--y%b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch' % (b" " * padding)
    form = asyncio.run(form_of(cut(FILE + content + field + END, places)))
    file = form["file"]
    assert isinstance(file, UploadFile)
    assert (file.file.read(), form["purpose"]) == (content, "batch")


def steps_of(pieces: Sequence[bytes]) -> int:
    """Lines of the parser that are run for a form; one that is refused is."""
    steps = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal steps
        if frame.f_code is not MultipartParser._internal_write.__code__:
            return None
        steps += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        asyncio.run(form_of(pieces))
    except InvalidRequestError:
        pass
    finally:
        sys.settrace(before)
    return steps


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from([b"\r\n--y", b"x", b"-", b"\r", b" ", b"\t", b"\r\n"]), min_size=1, max_size=4), PLACES)
def test_what_a_form_is_made_of_costs_its_parser_little(block: list[bytes], places: list[int]) -> None:
    """However often it comes: the same for twice as much, but for the pieces that are received."""
    once = b"".join(block)
    bound = 40 * (MAX_BOUNDARIES + MAX_PADDING_BYTES) + 200 * (len(places) + 1)
    for times in (10_000, 20_000):
        assert steps_of(cut(FILE + once * times + END, places)) < bound


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"\r\n--yx" * (MAX_BOUNDARIES + 1), "multipart/form-data; boundary=y"),
        (b"\r\n--y" + b" " * (MAX_PADDING_BYTES + 1), "multipart/form-data; boundary=y"),
        (b"", "multipart/form-data; boundary=y" + ";" * MAX_TYPE_BYTES),
    ],
)
def test_too_many_pieces_are_refused(content: bytes, kind: str) -> None:
    for pieces in ([FILE + content + END], [FILE, *(content[at : at + 1] for at in range(len(content))), END]):
        with pytest.raises(InvalidRequestError) as caught:
            asyncio.run(form_of(pieces, kind))
        assert caught.value.status == 400
