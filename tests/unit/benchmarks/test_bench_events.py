from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.events import EventSplitter, StreamFailure, error_message, generate_payload, read_ending, sse_payload

# What an event's line may hold: anything but line feeds.
_LINES = st.binary(max_size=12).map(lambda line: line.replace(b"\n", b""))
_EVENTS = st.lists(st.tuples(st.sampled_from([b"data: ", b"data:", b": ", b"event: "]), _LINES), max_size=12)


def _cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(_EVENTS, st.lists(st.integers(0, 10_000), max_size=20))
def test_every_split_gives_the_same_events(events: list[tuple[bytes, bytes]], places: list[int]) -> None:
    lines = [kind + line for kind, line in events]
    stream = b"".join(line + b"\n\n" for line in lines)
    splitter = EventSplitter()
    found = [event for part in _cut(stream, places) for event in splitter.feed(part)]
    assert found == [line for line in lines if line.startswith(b"data:")]
    assert splitter.rest == b""


def _sse(*chunks: object) -> list[bytes]:
    return [b"data: " + (chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode()) for chunk in chunks]


def test_endings() -> None:
    tail = _sse({"usage": None}, {"usage": {"prompt_tokens": 3, "completion_tokens": 5}}, b"[DONE]")
    ending = read_ending(tail, sse_payload)
    assert (ending.prompt_tokens, ending.completion_tokens, ending.done) == (3, 5, True)
    with pytest.raises(StreamFailure, match="it broke"):
        read_ending(_sse({"error": {"message": "it broke"}}, b"[DONE]"), sse_payload)


def test_triton_events_hold_json_text() -> None:
    assert generate_payload(_sse({"response": '{"choices":[]}'})[0]) == b'{"choices":[]}'
    with pytest.raises(StreamFailure, match="stub died"):
        generate_payload(_sse({"error": "stub died"})[0])


def test_error_messages() -> None:
    for body in (b'{"error":{"message":"no"}}', b'{"error":"no"}', b'data: {"error":"no"}\n\n'):
        assert error_message(body) == "no"
    assert error_message(b"<html>") == "<html>"
