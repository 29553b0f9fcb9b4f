"""Answers of hosts of images: every way to cut one is the same, and pieces are bounded against bytes."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.pipeline.media import answer as answers
from openai_bls.pipeline.media.answer import FREE_CHUNKS, MAX_FIELDS, MAX_INTERIM, READ_BYTES, ImageAnswer
from openai_bls.pipeline.media.budget import MediaBudget
from openai_bls.pipeline.media.errors import ImageError
from openai_bls.pipeline.slices import FEW_LINES, MAX_SLICE_LINES, Turns

MAX_BYTES = 10**6
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ONE_BYTE = b"1\r\nx\r\n"


class Counted(ImageAnswer):
    """An answer that counts the pieces that its parser finds."""

    pieces = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self.pieces += 1
        super().on_header(name, value)

    def on_chunk_header(self) -> None:
        self.pieces += 1
        super().on_chunk_header()

    def on_body(self, piece: bytes) -> None:
        self.pieces += 1
        super().on_body(piece)


async def read(segments: list[bytes], turns: Turns | None = None) -> Counted:
    """What is read of an answer, as the fetcher does."""
    turns = turns or Turns()
    with MediaBudget(10**7).lease() as lease:
        found = Counted(MAX_BYTES, lease)
        for segment in segments:
            for at in range(0, len(segment), READ_BYTES):
                if not found.ended and found.status in (0, 200):
                    await found.feed(segment[at : at + READ_BYTES], turns)
        return found


@st.composite
def answer(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """An answer, and its body."""
    interim = b"".join(draw(st.lists(st.sampled_from([b"100 Continue", b"103 Hints"]), max_size=MAX_INTERIM)))
    interim = b"".join(b"HTTP/1.1 103 Hints\r\nLocation: /\r\n\r\n" for _ in range(interim.count(b" ")))
    pieces = draw(
        st.lists(st.binary(min_size=1, max_size=300), max_size=8) | st.integers(0, 3000).map(lambda n: [b"\r"] * n)
    )
    body = b"".join(pieces)
    if draw(st.booleans()):
        return interim + b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body, body
    extension = draw(st.sampled_from([b"", b";a=b"]))
    chunks = b"".join(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces)
    trailers = b"a: b\r\n" * draw(st.integers(0, 100))
    return interim + CHUNKED + chunks + b"0\r\n" + trailers + b"\r\n", body


@settings(deadline=None)
@given(st.data())
def test_every_way_to_cut_an_answer_is_the_same(data: st.DataObject) -> None:
    """What follows it counts for nothing."""
    sent, body = data.draw(answer())
    sent += data.draw(st.sampled_from([b"", b"x", b"HTTP/1.1 500 Bad\r\nContent-Length: 1\r\n\r\nx"]))
    cuts = data.draw(st.lists(st.integers(0, len(sent)), max_size=6))
    segments = [sent[start:end] for start, end in pairwise(sorted({0, *cuts, len(sent)}))]

    async def main() -> None:
        found = await read(segments)
        assert (found.status, found.ended, await found.body()) == (200, True, body)
        assert found.location == ""

    asyncio.run(main())


@pytest.mark.parametrize(
    "sent",
    [
        CHUNKED + ONE_BYTE * (FREE_CHUNKS * 2),
        CHUNKED + b"1;" + b"a" * 140_000,
        CHUNKED + (b"1;" + b"a" * 70 + b"\r\nx\r\n") * 4000,
        CHUNKED + b"0\r\n" + b"a:\r\n" * (MAX_FIELDS + 2),
        CHUNKED + b"0\r\na: " + b"b" * 140_000,
        b"HTTP/1.1 200 OK\r\n" + b"a:\r\n" * (MAX_FIELDS + 2),
        b"HTTP/1.1 200 OK\r\na: " + b"b" * 200_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * (MAX_INTERIM + 1),
        b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    ],
    ids=lambda sent: bytes(sent[-12:]).hex(),
)
async def test_pieces_are_bounded_against_bytes(sent: bytes) -> None:
    """However they are cut."""
    for size in (len(sent), 1000):
        with pytest.raises(ImageError) as caught:
            await read([sent[at : at + size] for at in range(0, len(sent), size)])
        assert caught.value.code == "failed_to_download_image"


async def test_large_chunks_pay_for_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "FREE_CHUNKS", 10)
    large = b"%x\r\n%b\r\n" % (64_000, b"x" * 64_000)
    found = await read([CHUNKED + large + ONE_BYTE * 1000 + b"0\r\n\r\n"])
    assert len(await found.body()) == 65_000
    with pytest.raises(ImageError):
        await read([CHUNKED + ONE_BYTE * 1000 + large])


async def test_answers_take_turns() -> None:
    """A turn of the event loop parses a slice of one of them."""
    turns, found = Turns(), []
    with MediaBudget(10**7).lease() as lease:
        for _ in range(6):
            found.append(Counted(MAX_BYTES, lease))
        tasks = [asyncio.ensure_future(each.feed(CHUNKED + ONE_BYTE * 4000, turns)) for each in found]
        seen = 0
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            pieces = sum(each.pieces for each in found)
            assert pieces - seen <= MAX_SLICE_LINES + FEW_LINES
            seen = pieces
        assert seen == 6 * (1 + 2 * 4000)
