"""Compressed bodies: unpacked whatever pieces they come in, within the bounds of a body, or refused by name."""

from __future__ import annotations

import asyncio
import codecs
import gzip
import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.api.common.bodies import json_object
from openai_bls.api.http.content_coding import Unpacked
from openai_bls.core.errors import InvalidRequestError
from tests.unit.api.connections import CHAT, CHAT_TEXT, answered, connected, generated
from tests.unit.api.http_support import asked
from tests.unit.core_support import Bench

PATH = "/v1/chat/completions"
PIECE = 64 * 1024


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


FORMS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("gzip", gzip.compress),
    "members": ("gzip", lambda data: b"".join(gzip.compress(data[at : at + 7]) for at in range(0, len(data) or 1, 7))),
    "deflate": ("deflate", zlib.compress),
    "raw": ("deflate", raw_deflate),
    "stored": ("gzip", lambda data: gzip.compress(data, 0)),
}


async def read(coding: str, pieces: Sequence[bytes]) -> bytes:
    """What is read of a body that comes in pieces, each of which has a turn of the event loop."""
    left, turns = list(pieces), 0

    async def receive() -> dict[str, Any]:
        if not left:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def turn() -> None:
        nonlocal turns
        turns += 1

    unpacked, found, more = Unpacked(receive, coding, turn), b"", True
    while more:
        before = turns
        message = await unpacked()
        assert message["type"] == "http.request"
        assert turns > before or not message["body"]
        assert len(message["body"]) <= PIECE
        found, more = found + message["body"], message["more_body"]
    assert (await unpacked())["type"] == "http.disconnect"
    return found


def pieces_of(draw: st.DataObject, data: bytes) -> list[bytes]:
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=8)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@given(st.sampled_from(sorted(FORMS)), st.binary(max_size=300), st.sampled_from([1, 1000]), st.data())
def test_any_body_in_any_pieces(form: str, data: bytes, times: int, drawn: st.DataObject) -> None:
    coding, pack = FORMS[form]
    if form != "members":
        data *= times
    assert asyncio.run(read(coding, pieces_of(drawn, pack(data)))) == data


@given(st.sampled_from(sorted(FORMS)), st.binary(min_size=1, max_size=100), st.data())
def test_no_body_that_is_cut_short(form: str, data: bytes, drawn: st.DataObject) -> None:
    coding, pack = FORMS[form]
    # Not between two members, where a whole body ends.
    whole = pack(data) if form != "members" else gzip.compress(data)
    packed = whole[: drawn.draw(st.integers(1, len(whole) - 1))]
    with pytest.raises(InvalidRequestError) as caught:
        asyncio.run(read(coding, pieces_of(drawn, packed)))
    assert caught.value.code == "invalid_content_encoding"


@pytest.mark.parametrize(
    ("coding", "packed"),
    [
        ("gzip", b"{}"),
        ("deflate", b"{}"),
        # The time of a header would be another in each worker, and so the name of the test.
        ("gzip", gzip.compress(b"{}", mtime=0) + b"{}"),
        ("deflate", zlib.compress(b"{}") + b"{}"),
        # Nothing for ever.
        ("gzip", gzip.compress(b"", mtime=0) * 10_000),
        ("gzip", gzip.compress(b"", mtime=0)[:10] + b"\0\0\0\xff\xff" * 50_000),
    ],
)
def test_what_is_not_what_it_says(coding: str, packed: bytes) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        asyncio.run(read(coding, [packed[at : at + 50_000] for at in range(0, len(packed), 50_000)]))
    assert caught.value.code == "invalid_content_encoding"


def test_an_empty_body_is_empty() -> None:
    assert asyncio.run(read("gzip", [b""])) == b""


@pytest.mark.parametrize("encoding", ["gzip", " GZIP", "x-gzip", "deflate", "identity", "gzip, identity", ""])
async def test_a_chat(encoding: str) -> None:
    body = CHAT_TEXT if encoding in ("", "identity") else FORMS[encoding.strip().lower().split(",")[0]][1](CHAT_TEXT)
    async with connected() as (bench, _, client):
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Encoding:{encoding}\r\nContent-Length: {len(body)}\r\n\r\n"
        client.send(head.encode() + body)
        await generated(bench, client)
        # The connection goes on behind it.
        await answered(bench, client)


@pytest.mark.parametrize("path", [PATH, "/v1/messages", "/v1/embeddings", "/tokenize"])
@pytest.mark.parametrize("encoding", ["zstd", "br", "gzip, gzip", "compress"])
def test_other_codings_are_refused_by_name(path: str, encoding: str) -> None:
    answer = asked(Bench(), path, CHAT, headers=[("Content-Encoding", encoding)])
    assert (answer.status, answer.headers["accept-encoding"]) == (415, "gzip, deflate")
    assert encoding in answer.json()["error"]["message"]


@settings(max_examples=10)
@given(st.sampled_from(["gzip", "deflate"]), st.integers(1, 40))
def test_the_bound_is_that_of_the_unpacked_body(coding: str, times: int) -> None:
    body = json.dumps({**CHAT, "user": "x" * 100_000 * times}).encode()
    packed = (gzip.compress if coding == "gzip" else zlib.compress)(body)
    assert len(packed) < len(body) // 100
    for less, status in ((1, 413), (0, 200)):
        bench = Bench(max_request_bytes=len(body) - less, unknown_fields="ignore")

        def feed(bench: Bench = bench) -> None:
            if bench.engine.requests:
                bench.engine.deliver(0, "a", "stop")

        assert asked(bench, PATH, packed, feed, [("Content-Encoding", coding)]).status == status


def test_a_mark_before_the_text_is_skipped() -> None:
    bench = Bench()
    answer = asked(bench, PATH, codecs.BOM_UTF8 + CHAT_TEXT, lambda: bench.engine.deliver(0, "a", "stop"))
    assert answer.status == 200
    # As the tensors of Triton's endpoints are read.
    assert json_object(codecs.BOM_UTF8 + b"{}") == {}
    with pytest.raises(InvalidRequestError):
        json_object(codecs.BOM_UTF8 * 2 + b"{}")
