"""Pieces of requests: every way to cut them is the same request, they are bounded against bytes, and take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.api.http.connection import body_bounds, sliced_connection
from openai_bls.api.http.connection.body_bounds import FREE_CHUNKS, MAX_TRAILERS
from openai_bls.api.http.connection.bounded_connection import MAX_BLANK_BYTES
from openai_bls.api.http.connection.refusals import MAX_HEADERS
from openai_bls.pipeline.slices import FEW_LINES, MAX_SLICE_LINES, Turns
from tests.unit.api.http.wire import Counted, Wire
from tests.unit.core_support import until

CHUNKED = b"POST %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
ONE_BYTE = b"1\r\nx\r\n"


def in_loop(work: Callable[[], object]) -> None:
    asyncio.run(work())  # type: ignore[arg-type]


@contextmanager
def counting() -> Iterator[list[int]]:
    """Bytes of each call of a parser."""
    with pytest.MonkeyPatch.context() as patch:
        fed: list[int] = []
        patch.setattr(Counted, "fed", fed, raising=False)
        patch.setattr(httptools, "HttpRequestParser", Counted)
        yield fed


@st.composite
def chunked(draw: st.DrawFn, path: bytes) -> tuple[bytes, bytes]:
    """A request with a chunked body, and the body."""
    pieces = draw(
        st.lists(st.binary(min_size=1, max_size=40), max_size=8)
        | st.integers(0, 1500).map(lambda count: [b"x"] * count)
        | st.integers(1, 4).map(lambda count: [b"\r\n" * 30_000] * count)
    )
    extension = draw(st.sampled_from([b"", b";a", b";a=b;c", b';a="b"']))
    zeros = b"0" * draw(st.integers(0, 5))
    trailers = b"".join(b"%b: y\r\n" % name for name in draw(st.lists(st.sampled_from([b"a", b"host", b"x-y"]))))
    frames = [b"%b%x%b\r\n%b\r\n" % (zeros, len(piece), extension, piece) for piece in pieces]
    return CHUNKED % path + b"".join(frames) + b"0\r\n" + trailers + b"\r\n", b"".join(pieces)


@st.composite
def declared(draw: st.DrawFn, path: bytes) -> tuple[bytes, bytes]:
    """A request with a declared length, and its body."""
    body = draw(st.binary(max_size=100) | st.integers(0, 90_000).map(lambda size: b"\r\n" * size))
    headers = b"".join(b"x-%d: y\r\n" % number for number in range(draw(st.integers(0, 80))))
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%b\r\n" % (path, len(body), headers) + body, body


@st.composite
def segments_of(draw: st.DrawFn, sent: bytes) -> list[bytes]:
    """The same bytes, as they may be read."""
    cuts = draw(st.lists(st.integers(0, len(sent)), max_size=6) | st.just([*range(0, min(len(sent), 500))]))
    return [sent[start:end] for start, end in pairwise(sorted({0, *cuts, len(sent)}))]


REQUESTS = st.lists(st.sampled_from([chunked, declared]).flatmap(lambda make: make(b"/echo")), min_size=1, max_size=5)


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_every_way_to_cut_requests_is_the_same(data: st.DataObject) -> None:
    """Pipelined, with empty lines between them: answered in order, and the connection is kept."""
    requests = data.draw(REQUESTS)
    blank = data.draw(st.sampled_from([b"", b"\r\n", b"\r\n\r\n"]))
    segments = data.draw(segments_of(b"".join(blank + sent for sent, _ in requests)))

    async def main() -> None:
        wire = Wire(Turns(), segments)
        await wire.done(len(requests))
        assert wire.answers() == [(200, b"/echo " + body) for _, body in requests]
        assert not wire.has_ended
        assert not wire.is_closed
        assert not wire.is_paused

    in_loop(main)


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_nothing_is_parsed_after_a_refusal(data: st.DataObject) -> None:
    """Whatever is sent; the answers are whole, and the client can still send all it has."""
    before = data.draw(st.lists(chunked(b"/echo"), max_size=2))
    refused = data.draw(
        st.sampled_from(
            [
                (CHUNKED % b"/refused", 401),
                (b"GET / HTTP/1.1\r\n\r\n", 400),
                (b"GET / HTTP/1.1\r\nHost: x\r\nExpect: y\r\nContent-Length: 999999\r\n\r\n", 417),
                (b"!\r\n\r\n", 400),
                (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
                (CHUNKED % b"/echo" + b"zz\r\n", 400),
            ]
        )
    )
    rest = data.draw(st.sampled_from([ONE_BYTE, b"a:\r\n", b"\r\n", b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00"]))
    head = b"".join(sent for sent, _ in before) + refused[0]
    segments = data.draw(segments_of(head))

    async def main() -> None:
        with counting() as fed:
            wire = Wire(Turns(), [*segments, *[rest * 4000] * 3])
            await until(lambda: not wire.read() and wire.has_ended)
            parsed = sum(fed)
            # One read at most comes before the refusal, of which a slice is parsed.
            assert parsed < len(head) + 2 * len(rest) * MAX_SLICE_LINES + 4096
            await until(lambda: not wire.read() and not wire.segments)
            assert sum(fed) == parsed
        statuses = [status for status, _ in wire.answers()]
        # A body that is no HTTP either may be refused first, and what is no request only ends the answers before it.
        assert statuses[: len(before)] == [200] * len(before)
        assert statuses[len(before) :] in ([refused[1]], [400], [431], [] if refused[0][:1] in b"!P" else [400])
        assert not wire.is_closed
        assert not wire.is_paused

    in_loop(main)


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_a_turn_of_the_event_loop_takes_one_piece_of_one_connection(data: st.DataObject) -> None:
    """However many connections there are, and whatever they send."""
    kinds = [
        CHUNKED % b"/echo" + ONE_BYTE * 6000,
        CHUNKED % b"/refused" + ONE_BYTE * 6000,
        CHUNKED % b"/echo" + b"0\r\n" + b"a:\r\n" * 6000,
        b"GET /echo HTTP/1.1\r\nHost: x\r\n" + b"a:\r\n" * 6000,
        b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n" * 600,
        b"GET /echo HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n" * 600,
        CHUNKED % b"/echo" + b"1;a\r\nx\r\n" * 6000,
    ]
    sent = data.draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=8))

    async def main() -> None:
        turns = Turns()
        wires = [Wire(turns, [bytes_]) for bytes_ in sent]
        seen = 0
        while len(turns) or sum(wire.read() for wire in wires):
            await asyncio.sleep(0)
            pieces = sum(wire.connection.pieces for wire in wires)
            assert pieces - seen <= MAX_SLICE_LINES + FEW_LINES * len(wires)
            seen = pieces
        quiet = Wire(turns, [b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n"])
        await quiet.done(1)

    in_loop(main)


async def test_a_quiet_connection_waits_for_one_slice() -> None:
    """Beside others that have much to be parsed."""
    turns = Turns()
    loud = [Wire(turns, [CHUNKED % b"/echo" + ONE_BYTE * 40_000]) for _ in range(6)]
    for wire in loud:
        assert wire.read()
    for _ in range(5):
        before = sum(wire.connection.pieces for wire in loud)
        quiet = Wire(turns, [b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n"])
        quiet.read()
        waited = 0
        while not quiet.written:
            await asyncio.sleep(0)
            waited += 1
        # Its own task, and what it has written going out.
        assert waited <= 3
        assert sum(wire.connection.pieces for wire in loud) - before <= 3 * MAX_SLICE_LINES
        assert len(turns) == len(loud)


# --- bounds ---


async def status_of(sent: bytes, **options: object) -> int:
    wire = Wire(Turns(), [sent], **options)
    await wire.done(1)
    ((status, _),) = wire.answers()
    assert wire.has_ended == (status != 200)
    return status


@pytest.mark.parametrize(("extra", "status"), [(0, 200), (1, 413)])
@pytest.mark.parametrize("large", [0, 64_000])
async def test_chunks_are_bounded_against_bytes(
    extra: int, status: int, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_bounds, "FREE_CHUNKS", 1000)
    first = b"%x\r\n%b\r\n" % (large, b"x" * large) if large else b""
    # Each brings a byte of content; the last one, of no bytes, is one too.
    small = (64 * (1000 - 1 - bool(large)) + large) // 63 + extra
    assert await status_of(CHUNKED % b"/echo" + first + ONE_BYTE * small + b"0\r\n\r\n") == status


@pytest.mark.parametrize(("extra", "status"), [(0, 200), (1, 431)])
async def test_headers_and_trailers_are_counted(extra: int, status: int) -> None:
    head = b"GET /echo HTTP/1.1\r\nHost: x\r\n" + b"a:\r\n" * (MAX_HEADERS - 1 + extra) + b"\r\n"
    assert await status_of(head) == status
    trailers = b"a:\r\n" * (MAX_TRAILERS + extra)
    assert await status_of(CHUNKED % b"/echo" + b"1\r\nx\r\n0\r\n" + trailers + b"\r\n") == status


async def test_empty_lines_are_no_request() -> None:
    request = b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n"
    wire = Wire(Turns(), [b"\r\n" * (MAX_BLANK_BYTES // 2), request])
    await wire.done(1)
    silent = wire.connection.timeout_keep_alive_task
    assert silent is not None
    wire.segments = [b"\r\n"]
    assert wire.read()
    # They keep no connection open.
    assert wire.connection.timeout_keep_alive_task is silent
    assert not silent.cancelled()
    assert await status_of(b"\r\n" * (MAX_BLANK_BYTES // 2 + 1)) == 400


async def test_a_connection_that_is_to_close_parses_no_further_request() -> None:
    request = b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n"
    with counting() as fed:
        wire = Wire(Turns(), [request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), request * 100])
        await until(lambda: not wire.read() and (wire.is_closed or wire.has_ended))
        assert len(fed) == 1
    assert [status for status, _ in wire.answers()] == [200]


async def test_what_is_thrown_away_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sliced_connection, "MAX_DISCARDED_BYTES", 100_000)
    wire = Wire(Turns(), [CHUNKED % b"/refused", *[ONE_BYTE * 5000] * 8])
    assert wire.read()
    await until(lambda: wire.has_ended)
    for _ in range(3):
        assert wire.read()
    assert not wire.is_closed
    assert wire.read()
    assert wire.is_closed


async def test_a_body_that_fails_behind_other_answers_is_refused_in_its_turn() -> None:
    """The answers before it are not lost."""
    first = CHUNKED % b"/echo" + b"1\r\nx\r\n"
    wire = Wire(Turns(), [b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n" + first + b"zz\r\n"])
    assert wire.read()
    await until(lambda: wire.has_ended)
    assert [status for status, _ in wire.answers()] == [200, 400]


async def test_the_rest_of_a_declared_body_is_skipped_unparsed() -> None:
    """And the connection is kept."""
    size = 600_000
    with counting() as fed:
        wire = Wire(Turns(), [b"POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size])
        await wire.done(1)
        fed.clear()
        wire.segments = [b"y" * 100_000 + b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n", *[b"y" * 100_000] * 5]
        await wire.done(2)
        assert sum(fed) < 100
    assert [status for status, _ in wire.answers()] == [401, 200]


async def test_one_byte_chunks_within_the_bound_cost_no_more_slices_than_they_need() -> None:
    count = FREE_CHUNKS - 1
    with counting() as fed:
        wire = Wire(Turns(), [CHUNKED % b"/echo" + ONE_BYTE * count + b"0\r\n\r\n"], max_request_bytes=10**6)
        await wire.done(1)
    assert wire.answers() == [(200, b"/echo " + b"x" * count)]
    assert len(fed) <= 2 * count * 2 // 1024 + 4
