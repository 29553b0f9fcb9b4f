"""Frames of the exchange, cut anywhere, and lengths that no end sends."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.transport.ipc import frames
from openai_bls.transport.ipc.frames import LENGTH, MAX_FRAME_BYTES, FrameError, Frames, FrameTooLargeError, pack

LIMIT = 40
MESSAGES = st.lists(st.binary(max_size=LIMIT), max_size=20)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


@given(MESSAGES, st.lists(st.integers(0, 1000), max_size=40))
def test_messages_come_whole_wherever_they_are_cut(messages: list[bytes], cuts: list[int]) -> None:
    parser = Frames(LIMIT)
    found = [message for piece in pieces(b"".join(map(pack, messages)), cuts) for message in parser.feed(piece)]
    assert found == messages
    assert not parser._buffer


@given(MESSAGES, st.integers(LIMIT + 1, 2**32 - 1), st.binary(max_size=100), st.lists(st.integers(0, 1000), max_size=9))
def test_a_larger_message_is_refused_at_its_header(
    messages: list[bytes], length: int, after: bytes, cuts: list[int]
) -> None:
    """Before its bytes are kept."""
    parser = Frames(LIMIT)
    head = b"".join(map(pack, messages)) + LENGTH.pack(length)
    *before, last = pieces(head, cuts)
    for piece in before:
        parser.feed(piece)
    with pytest.raises(FrameError):
        parser.feed(last)
    with pytest.raises(FrameError):
        Frames(LIMIT).feed(head + after)


@given(st.binary(min_size=LENGTH.size, max_size=LENGTH.size))
def test_any_header_costs_no_more_than_its_bytes(header: bytes) -> None:
    parser = Frames()
    (length,) = LENGTH.unpack(header)
    if length > MAX_FRAME_BYTES:
        with pytest.raises(FrameError):
            parser.feed(header)
    else:
        assert parser.feed(header) == ([b""] if length == 0 else [])
        assert len(parser._buffer) <= len(header)


def test_what_does_not_fit_is_refused_by_its_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", LIMIT)
    assert Frames(LIMIT).feed(pack(bytes(LIMIT))) == [bytes(LIMIT)]
    with pytest.raises(FrameTooLargeError):
        pack(bytes(LIMIT + 1))
