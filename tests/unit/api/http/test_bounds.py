"""What a client can cost before its request is admitted, over real sockets."""

from __future__ import annotations

import asyncio
import http.client
import json
from pathlib import Path
from typing import Any

import httptools
import pytest

from openai_bls.api.http import body_budget, handlers, uvicorn_server
from openai_bls.api.http.body_budget import BodyBudget
from openai_bls.api.http.connection import bounded_connection
from openai_bls.api.http.connection.bounded_connection import MAX_PIPELINED, BoundedConnection
from openai_bls.api.http.connection.refusals import MAX_HEAD_BYTES
from openai_bls.core.machine import memory
from tests.unit.api.connections import CHAT, CHAT_TEXT, VERSION, Client, answered, connected, generated
from tests.unit.api.http_support import over_socket
from tests.unit.core_support import until

CHUNKED = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


LINE = b"A: " + b"x" * 1000 + b"\r\n"
TOO_MANY_LINES = LINE * (MAX_HEAD_BYTES // 1000 + 1)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"CONNECT evil:80 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /" + b"a" * (MAX_HEAD_BYTES + 2000) + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /version\r\n\r\n", 400),
        (b"GET /version\r\nHost: x\r\n\r\n", 400),
        (b"POST /v1/completions\r\nHost: x\r\nContent-Length: 9\r\n\r\n", 400),
        (b"GET /version HTTP/0.9\r\nHost: x\r\n\r\n", 400),
        (b"GET /version HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (b"GET /version HTTP/1.1\r\n\r\n", 400),
        (b"GET /version HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", 400),
        (b"GET /version HTTP/1.1\r\nHost: x\r\nExpect: 200-ok\r\n\r\n", 417),
        (b"GET /version HTTP/1.1\r\nHost: x\r\n" + TOO_MANY_LINES + b"\r\n", 431),
        (b"GET /version HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 3_000_000, 431),
        (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10001\r\n\r\n", 413),
    ],
)
async def test_a_request_that_is_refused_by_its_head(sent: bytes, status: int) -> None:
    async with connected(2, max_request_bytes=10_000) as (_, _, client, other):
        client.send(sent)
        await client.refused(status)
        other.send(VERSION[:-2] + LINE * 50 + b"\r\n")
        assert await other.status() == 200


async def test_http_1_0_needs_no_host() -> None:
    async with connected() as (_, _, client):
        client.send(b"GET /version HTTP/1.0\r\n\r\n")
        assert await client.status() == 200


# --- upgrades ---

UPGRADES = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQA")


@pytest.mark.parametrize("pieces", [1, 7, 1000])
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_request_for_an_upgrade_is_answered_as_if_it_asked_for_none(pieces: int, chunked: bool) -> None:
    """With its body, and what is pipelined behind it."""
    body = json.dumps(CHAT | {"user": VERSION.decode()}).encode()
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
    head = "\r\n".join(["POST /v1/chat/completions HTTP/1.1", "Host: x", *UPGRADES, length]).encode()
    sent = head + b"\r\n\r\n" + (b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body) + VERSION
    async with connected() as (bench, _, client):
        step = -(-len(sent) // pieces)
        for at in range(0, len(sent), step):
            client.send(sent[at : at + step])
            await asyncio.sleep(0)
        await generated(bench, client)
        assert "version" in (await client.answer())[2]
        await answered(bench, client)


async def test_upgrades_without_a_body() -> None:
    async with connected() as (bench, _, client):
        for length in ("X: 0", "Content-Length: 0"):
            client.send("\r\n".join(["GET /version HTTP/1.1", "Host: x", *UPGRADES, length]).encode() + b"\r\n\r\n")
        assert [await client.status() for _ in range(2)] == [200, 200]
        await answered(bench, client)


# --- chunks ---


async def test_trailers_count_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no headers of the request, and nothing keeps them."""
    headers: list[int] = []
    complete = BoundedConnection.on_message_complete

    def counted(connection: BoundedConnection) -> None:
        headers.append(len(connection.headers))
        complete(connection)

    monkeypatch.setattr(BoundedConnection, "on_message_complete", counted)
    async with connected() as (_, _, client):
        client.send(CHUNKED + b"2\r\n{}\r\n0\r\n" + b"Authorization: Bearer x\r\n" * 1000 + b"\r\n")
        assert await client.status() == 400
    assert headers == [2]


PIECE = b"a" * 16384


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"2\r\n{}\r\n0\r\n", b"X: " + PIECE + b"\r\n"),
        (b"2\r\n{}\r\n0\r\nX: ", PIECE),
        (b"1;", PIECE),
        (b"", b"1;" + PIECE + b"\r\n \r\n"),
    ],
    ids=["trailers", "one trailer", "one chunk extension", "chunk extensions"],
)
async def test_chunk_extensions_and_trailers_without_end(
    begin: bytes, piece: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are refused, and what comes after the refusal is not parsed."""
    fed: list[int] = []

    class Counting(httptools.HttpRequestParser):
        def feed_data(self, data: Any) -> None:
            fed.append(len(data))
            super().feed_data(data)

    monkeypatch.setattr(httptools, "HttpRequestParser", Counting)
    async with connected() as (_, _, client):
        client.send(CHUNKED)
        client.send(begin)
        answer = asyncio.create_task(client.status())
        sent = 0
        while not answer.done() and sent < 256:
            client.send(piece)
            sent += 1
            await client.writer.drain()
            await asyncio.sleep(0)
        assert await answer == 431
        parsed = sum(fed)
        assert parsed > 0
        client.send(PIECE * 64)
        client.writer.write_eof()
        assert await client.reader.read() == b""
        assert sum(fed) == parsed


async def test_a_body_in_chunks_of_one_byte_has_no_extensions() -> None:
    body = json.dumps(CHAT | {"user": "a" * 40_000}).encode()
    async with connected() as (bench, _, client):
        client.send(CHUNKED)
        client.send(b"".join(b"00000001\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")
        await generated(bench, client)
        await answered(bench, client)


# --- what is late ---


async def test_a_large_body_before_a_head_is_no_head() -> None:
    """What is counted of a head begins with it."""
    async with connected(max_request_bytes=10**6) as (_, _, client):
        head = b"GET /version HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n"
        client.send(head + b"x" * 200_000 + VERSION[:10])
        assert await client.status() == 200
        client.send(VERSION[10:])
        assert await client.status() == 200


async def test_half_a_head() -> None:
    async with connected(head_timeout_s=0.02) as (_, _, client):
        client.send(VERSION)
        assert await client.status() == 200
        client.send(VERSION[:-2])
        assert "0.02 s" in await client.refused(408)


async def test_half_a_head_behind_an_answer_that_is_on_its_way() -> None:
    async with connected(2, head_timeout_s=0.02) as (bench, _, client, other):
        client.post()
        await until(lambda: bench.engine.requests)
        client.send(VERSION[:10])
        await client.writer.drain()
        # Its time begins later, and so it ends later.
        other.send(VERSION)
        assert await other.status() == 200
        other.send(VERSION[:10])
        await other.refused(408)
        bench.engine.deliver(0, "a", "length")
        status, headers, _ = await client.answer()
        assert (status, headers["connection"]) == (200, "close")
        await client.cut()


@pytest.mark.parametrize("sent", [b"", b"{"])
async def test_a_body_that_does_not_come(sent: bytes) -> None:
    async with connected(body_timeout_s=0.02) as (bench, _, client):
        client.post(sent, length=100)
        assert "0.02 s" in await client.refused(408)
        assert bench.engine.requests == []


async def test_a_body_that_comes_slowly_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_connection, "MIN_BODY_BYTES", 0)
    async with connected(2, body_timeout_s=0.001, head_timeout_s=0.02) as (bench, _, client, clock):
        client.post(CHAT_TEXT[:5], length=len(CHAT_TEXT))
        # Meanwhile the body's time is over several times.
        clock.send(VERSION[:10])
        await clock.refused(408)
        client.send(CHAT_TEXT[5:])
        await generated(bench, client)


async def test_a_connection_that_stays_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn_server, "KEEP_ALIVE_S", 0.02)
    async with over_socket() as (_, port):
        await (await Client.connect(port)).cut()


async def test_a_connection_that_stays_silent_after_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[BoundedConnection] = []
    connection_made = BoundedConnection.connection_made

    def noted(connection: BoundedConnection, transport: asyncio.BaseTransport) -> None:
        connection_made(connection, transport)
        made.append(connection)

    monkeypatch.setattr(BoundedConnection, "connection_made", noted)
    async with connected() as (_, _, client):
        await until(lambda: made)
        # Not before: the request itself might come too late.
        made[0].timeout_keep_alive = 0.02  # type: ignore[assignment]
        client.send(VERSION)
        assert await client.status() == 200
        client.send(b"\r\n")
        await client.cut()


# --- what is too much ---


async def test_pipelined_requests_without_end() -> None:
    async with connected() as (bench, _, client):
        client.post()
        await until(lambda: bench.engine.requests)
        client.send(VERSION * 5000)
        await client.writer.drain()
        bench.engine.deliver(0, "a", "length")
        # One more if the chat is answered before these are read.
        assert [await client.status() for _ in range(MAX_PIPELINED + 1)] == [200] * (MAX_PIPELINED + 1)
        status, headers, _ = await client.answer()
        if status == 200:
            status, headers, _ = await client.answer()
        assert (status, headers["connection"]) == (503, "close")
        assert await client.reader.read() == b""


async def test_one_connection_too_many() -> None:
    async with connected(2, max_connections=2) as (bench, port, first, second):
        for client in (first, second):
            await answered(bench, client)
        third = await Client.connect(port)
        assert "connections" in await third.refused(503)
        first.writer.close()
        second.send(VERSION)
        assert await second.status() == 200
        fourth = await Client.connect(port)
        await answered(bench, fourth)
        fourth.writer.close()


async def test_connections_far_beyond_the_limit_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_connection, "MAX_REFUSED_CONNECTIONS", 1)
    async with connected(max_connections=1) as (bench, port, first):
        await answered(bench, first)
        refused = await Client.connect(port)
        assert await refused.status() == 503
        await (await Client.connect(port)).cut()
        refused.writer.close()


# --- bodies ---


@pytest.mark.parametrize("expects", [True, False])
async def test_the_key_is_looked_at_before_the_body(expects: bool) -> None:
    async with connected(api_key="secret") as (_, _, client):
        client.post(b"", *["Expect: 100-continue"] * expects, length=30_000_000)
        if expects:
            await client.refused(401)
        else:
            assert await client.status() == 401


async def test_a_body_that_is_expected_and_welcome() -> None:
    async with connected() as (bench, _, client):
        client.post(b"", "Expect: 100-continue", length=len(CHAT_TEXT))
        assert await client.status() == 100
        client.send(CHAT_TEXT)
        await generated(bench, client)


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_plain_client_reads_why_its_large_body_was_refused(chunked: bool) -> None:
    """It sends all of it before it reads, on a connection that it wants closed."""

    def post(port: int) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        pieces = [b"x" * 100_000] * 80
        body: Any = iter(pieces) if chunked else b"".join(pieces)
        connection.request("POST", "/v1/completions", body, {"Connection": "close"}, encode_chunked=chunked)
        status = connection.getresponse().status
        connection.close()
        return status

    async with over_socket(max_request_bytes=1000) as (_, port):
        assert await asyncio.to_thread(post, port) == 413


async def test_a_body_without_end_behind_an_answer() -> None:
    async with connected(max_request_bytes=100_000) as (_, _, client):
        client.send(CHUNKED.replace(b"/v1/chat/completions", b"/nothing"))
        assert await client.status() == 404
        for _ in range(20):
            client.send(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
        await client.cut()


@pytest.mark.parametrize("chunked", [True, False])
async def test_large_bodies_share_a_budget(chunked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = BodyBudget(100_000)
    monkeypatch.setattr(handlers, "BodyBudget", lambda *_: budget)
    async with connected(3, max_body_bytes_in_flight=100_000) as (bench, _, first, second, small):
        body = json.dumps({**CHAT, "user": "u" * 60_000}).encode()
        first.post(body[:-1], length=len(body))
        await until(lambda: budget.held == len(body))
        if chunked:
            second.send(CHUNKED + b"%x\r\n%b\r\n" % (len(body), body))
        else:
            second.post(b"", length=len(body))
        status, headers, _ = await second.answer()
        assert (status, headers["retry-after"]) == (503, "1")
        await answered(bench, small)
        first.send(body[-1:])
        await generated(bench, first, 2)
        await until(lambda: budget.held == 0)


async def test_a_key_s_bodies_leave_room_for_another_s(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("alice: a\nbob: b\n")
    keys = str(tmp_path / "keys")
    async with connected(3, max_body_bytes_in_flight=100_000, api_keys_file=keys) as (bench, _, first, second, third):
        body = json.dumps({**CHAT, "user": "u" * 30_000}).encode()

        def head(key: bytes) -> bytes:
            lines = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % len(body)
            return lines + b"Authorization: Bearer " + key + b"\r\n\r\n"

        first.send(head(b"a") + body[:-1])
        # Two thirds of all would be more than she leaves.
        second.send(head(b"a") + body)
        status, headers, _ = await second.answer()
        assert (status, headers["retry-after"]) == (503, "1")
        third.send(head(b"b") + body)
        await generated(bench, third, 1)
        first.send(body[-1:])
        await generated(bench, first, 2)


async def test_memory_is_given_back_after_a_large_body(monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed = []
    monkeypatch.setattr(memory, "trim", lambda: trimmed.append(1))
    monkeypatch.setattr(body_budget, "TRIM_S", 0)
    async with connected() as (_, _, client):
        client.post(b"x" * 1_500_000)
        assert await client.status() == 400
        await until(lambda: trimmed)
