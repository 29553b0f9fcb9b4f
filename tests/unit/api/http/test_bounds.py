"""What a client can cost before its request is admitted, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
from typing import Any

import pytest

from openai_bls.api.http import body_budget, bounded_connection, handlers, uvicorn_server
from openai_bls.api.http.body_budget import BodyBudget
from openai_bls.api.http.bounded_connection import MAX_HEAD_BYTES, MAX_PIPELINED, BoundedConnection
from openai_bls.core import memory
from tests.unit.api.http_support import over_socket, until
from tests.unit.core_support import Bench

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
VERSION = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"


class Client:
    """One connection, in bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.send = writer.write

    @classmethod
    async def connect(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def post(self, body: bytes, *headers: str, length: int | None = None) -> None:
        lines = ["POST /v1/chat/completions HTTP/1.1", "Host: x", f"Content-Length: {length or len(body)}", *headers]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        """The next response: status, headers, JSON body."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])}
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return int(head[0].split()[1]), headers, json.loads(body) if body else None

    async def refused(self, status: int) -> str:
        """The error's message; the connection ends after it."""
        answered, headers, body = await self.answer()
        assert (answered, headers["connection"]) == (status, "close")
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert await self.reader.read() == b""
        self.writer.close()
        message: str = body["error"]["message"]
        return message

    async def cut(self) -> None:
        """The connection ends, without an answer."""
        with contextlib.suppress(ConnectionError):
            assert await self.reader.read() == b""
        self.writer.close()


async def answered(bench: Bench, client: Client) -> None:
    """A chat on a connection that is in order."""
    count = len(bench.engine.requests)
    client.post(json.dumps(CHAT).encode())
    await until(lambda: len(bench.engine.requests) == count + 1)
    bench.engine.deliver(count, "a", "length")
    assert (await client.answer())[0] == 200


UPGRADES = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQA")


@pytest.mark.parametrize("pieces", [1, 7, 1000])
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_request_for_an_upgrade_is_answered_as_if_it_asked_for_none(pieces: int, chunked: bool) -> None:
    """With its body, and what is pipelined behind it."""
    body = json.dumps(CHAT | {"user": VERSION.decode()}).encode()
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
    head = "\r\n".join(["POST /v1/chat/completions HTTP/1.1", "Host: x", *UPGRADES, length]).encode()
    sent = head + b"\r\n\r\n" + (b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body) + VERSION
    async with over_socket() as (bench, port):
        client = await Client.connect(port)
        step = -(-len(sent) // pieces)
        for at in range(0, len(sent), step):
            client.send(sent[at : at + step])
            await asyncio.sleep(0)
        await until(lambda: len(bench.engine.requests) == 1)
        bench.engine.deliver(0, "a", "length")
        assert (await client.answer())[0] == 200
        assert "version" in (await client.answer())[2]
        await answered(bench, client)


async def test_upgrades_without_a_body() -> None:
    async with over_socket() as (bench, port):
        client = await Client.connect(port)
        for length in ("X: 0", "Content-Length: 0"):
            client.send("\r\n".join(["GET /version HTTP/1.1", "Host: x", *UPGRADES, length]).encode() + b"\r\n\r\n")
        assert [(await client.answer())[0] for _ in range(2)] == [200, 200]
        await answered(bench, client)


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"CONNECT evil:80", 400),
        (b"GET /" + b"a" * (MAX_HEAD_BYTES + 2000), 431),
        (b"GET http://[", 400),
    ],
)
async def test_a_path_that_is_none_is_told(line: bytes, status: int) -> None:
    async with over_socket() as (_, port):
        client = await Client.connect(port)
        client.send(line + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.refused(status)


async def test_trailers_count_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no headers of the request, and nothing keeps them."""
    headers: list[int] = []
    complete = BoundedConnection.on_message_complete

    def counted(connection: BoundedConnection) -> None:
        headers.append(len(connection.headers))
        complete(connection)

    monkeypatch.setattr(BoundedConnection, "on_message_complete", counted)
    body = b"POST /v1/tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    async with over_socket() as (_, port):
        client = await Client.connect(port)
        client.send(body + b"Authorization: Bearer x\r\n" * 1000 + b"\r\n")
        assert (await client.answer())[0] == 400
    assert headers == [2]


CHUNKED = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
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
    feed = BoundedConnection._feed

    def counted(connection: BoundedConnection, data: bytes) -> None:
        fed.append(len(data))
        feed(connection, data)

    monkeypatch.setattr(BoundedConnection, "_feed", counted)
    async with over_socket() as (_, port):
        client = await Client.connect(port)
        client.send(CHUNKED)
        client.send(begin)
        answer = asyncio.create_task(client.answer())
        sent = 0
        while not answer.done() and sent < 256:
            client.send(piece)
            sent += 1
            await client.writer.drain()
            await asyncio.sleep(0)
        assert (await answer)[0] == 431
        parsed = sum(fed)
        client.send(PIECE * 64)
        client.writer.write_eof()
        assert await client.reader.read() == b""
        assert sum(fed) == parsed
        client.writer.close()


async def test_a_body_in_chunks_of_one_byte_has_no_extensions() -> None:
    body = json.dumps(CHAT | {"user": "a" * 40_000}).encode()
    async with over_socket() as (bench, port):
        client = await Client.connect(port)
        client.send(CHUNKED)
        client.send(b"".join(b"00000001\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")
        await until(lambda: len(bench.engine.requests) == 1)
        bench.engine.deliver(0, "a", "length")
        assert (await client.answer())[0] == 200
        await answered(bench, client)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"", 400),
        (b"Host: x\r\nHost: x\r\n", 400),
        (b"Host: x\r\nExpect: 200-ok\r\n", 417),
    ],
)
async def test_a_head_against_the_rules(headers: bytes, status: int) -> None:
    async with over_socket() as (_, port):
        client = await Client.connect(port)
        client.send(b"GET /version HTTP/1.1\r\n" + headers + b"\r\n")
        await client.refused(status)


async def test_http_1_0_needs_no_host() -> None:
    async with over_socket() as (_, port):
        client = await Client.connect(port)
        client.send(b"GET /version HTTP/1.0\r\n\r\n")
        assert (await client.answer())[0] == 200


@pytest.mark.parametrize("complete", [True, False])
async def test_a_head_that_is_too_large(complete: bool) -> None:
    async with over_socket() as (_, port):
        client = await Client.connect(port)
        line = b"A: " + b"x" * 1000 + b"\r\n"
        if complete:
            client.send(b"GET /version HTTP/1.1\r\nHost: x\r\n" + line * (MAX_HEAD_BYTES // 1000 + 1) + b"\r\n")
        else:
            client.send(b"GET /version HTTP/1.1\r\nHost: x\r\nA: ")
            for _ in range(64):
                client.send(b"x" * 50_000)
                await client.writer.drain()
        assert str(MAX_HEAD_BYTES) in await client.refused(431)
        other = await Client.connect(port)
        other.send(b"GET /version HTTP/1.1\r\nHost: x\r\n" + line * 50 + b"\r\n")
        assert (await other.answer())[0] == 200
        other.writer.close()


async def test_a_large_body_before_a_head_is_no_head() -> None:
    """What is counted of a head begins with it."""
    async with over_socket(max_request_bytes=10**6) as (_, port):
        client = await Client.connect(port)
        head = b"GET /version HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n"
        client.send(head + b"x" * 200_000 + VERSION[:10])
        assert (await client.answer())[0] == 200
        client.send(VERSION[10:])
        assert (await client.answer())[0] == 200
        client.writer.close()


async def test_half_a_head() -> None:
    async with over_socket(head_timeout_s=0.02) as (_, port):
        client = await Client.connect(port)
        client.send(VERSION)
        assert (await client.answer())[0] == 200
        client.send(VERSION[:-2])
        assert "0.02 s" in await client.refused(408)


async def test_half_a_head_behind_an_answer_that_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    late = []
    original = BoundedConnection._head_timed_out

    def timed_out(connection: BoundedConnection) -> None:
        original(connection)
        late.append(connection)

    monkeypatch.setattr(BoundedConnection, "_head_timed_out", timed_out)
    async with over_socket(head_timeout_s=0.02) as (bench, port):
        client = await Client.connect(port)
        client.post(json.dumps(CHAT).encode())
        await until(lambda: bench.engine.requests)
        client.send(VERSION[:10])
        await until(lambda: late)
        bench.engine.deliver(0, "a", "length")
        status, headers, _ = await client.answer()
        assert (status, headers["connection"]) == (200, "close")
        await client.cut()


@pytest.mark.parametrize("head", [True, False])
async def test_a_body_that_does_not_come(head: bool) -> None:
    async with over_socket(body_timeout_s=0.02) as (bench, port):
        client = await Client.connect(port)
        client.post(b"" if head else b"{", length=100)
        assert "0.02 s" in await client.refused(408)
        assert bench.engine.requests == []


async def test_a_body_that_comes_slowly_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_connection, "MIN_BODY_BYTES", 0)
    looks = 0

    def watch(connection: BoundedConnection) -> None:
        nonlocal looks
        looks += 1
        original(connection)

    original = BoundedConnection._watch_body
    monkeypatch.setattr(BoundedConnection, "_watch_body", watch)
    async with over_socket(body_timeout_s=0.001) as (bench, port):
        client = await Client.connect(port)
        body = json.dumps(CHAT).encode()
        client.post(body[:5], length=len(body))
        await until(lambda: looks > 3)
        client.send(body[5:])
        await until(lambda: bench.engine.requests)
        bench.engine.deliver(0, "a", "length")
        assert (await client.answer())[0] == 200
        client.writer.close()


async def test_a_connection_that_stays_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn_server, "_KEEP_ALIVE_S", 0.02)
    async with over_socket() as (_, port):
        await (await Client.connect(port)).cut()
        client = await Client.connect(port)
        client.send(VERSION)
        assert (await client.answer())[0] == 200
        client.send(b"\r\n")
        await client.cut()


async def test_pipelined_requests_without_end() -> None:
    async with over_socket() as (bench, port):
        client = await Client.connect(port)
        client.post(json.dumps(CHAT).encode())
        await until(lambda: bench.engine.requests)
        client.send(VERSION * 5000)
        await client.writer.drain()
        bench.engine.deliver(0, "a", "length")
        # One more if the chat is answered before these are read.
        assert [(await client.answer())[0] for _ in range(MAX_PIPELINED + 1)] == [200] * (MAX_PIPELINED + 1)
        status, headers, body = await client.answer()
        if status == 200:
            status, headers, body = await client.answer()
        assert (status, headers["connection"]) == (503, "close")
        assert str(MAX_PIPELINED) in body["error"]["message"]
        assert await client.reader.read() == b""


async def test_one_connection_too_many() -> None:
    async with over_socket(max_connections=2) as (bench, port):
        first, second = await Client.connect(port), await Client.connect(port)
        for client in (first, second):
            await answered(bench, client)
        third = await Client.connect(port)
        assert "connections" in await third.refused(503)
        first.writer.close()
        second.send(VERSION)
        assert (await second.answer())[0] == 200
        fourth = await Client.connect(port)
        await answered(bench, fourth)
        for client in (second, fourth):
            client.writer.close()


async def test_connections_far_beyond_the_limit_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_connection, "MAX_REFUSED_CONNECTIONS", 1)
    async with over_socket(max_connections=1) as (bench, port):
        first = await Client.connect(port)
        await answered(bench, first)
        refused = await Client.connect(port)
        assert (await refused.answer())[0] == 503
        await (await Client.connect(port)).cut()
        for client in (first, refused):
            client.writer.close()


@pytest.mark.parametrize("expects", [True, False])
async def test_the_key_is_looked_at_before_the_body(expects: bool) -> None:
    async with over_socket(api_key="secret") as (_, port):
        client = await Client.connect(port)
        client.post(b"", *["Expect: 100-continue"] * expects, length=30_000_000)
        if expects:
            assert "key" in await client.refused(401)
        else:
            assert (await client.answer())[0] == 401
            client.writer.close()


async def test_a_body_that_is_expected_and_welcome() -> None:
    async with over_socket() as (bench, port):
        client = await Client.connect(port)
        body = json.dumps(CHAT).encode()
        client.post(b"", "Expect: 100-continue", length=len(body))
        assert (await client.answer())[0] == 100
        client.send(body)
        await until(lambda: bench.engine.requests)
        bench.engine.deliver(0, "a", "length")
        assert (await client.answer())[0] == 200
        client.writer.close()


async def test_a_declared_length_that_is_too_large_is_refused_at_once() -> None:
    async with over_socket(max_request_bytes=1000) as (_, port):
        client = await Client.connect(port)
        client.post(b"", length=1001)
        assert "1000" in await client.refused(413)


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
    async with over_socket(max_request_bytes=100_000) as (_, port):
        client = await Client.connect(port)
        client.send(b"POST /nothing HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert (await client.answer())[0] == 404
        for _ in range(20):
            client.send(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
        await client.cut()


@pytest.mark.parametrize("chunked", [True, False])
async def test_large_bodies_share_a_budget(chunked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = BodyBudget(100_000)
    monkeypatch.setattr(handlers, "BodyBudget", lambda limit: budget)
    async with over_socket(max_body_bytes_in_flight=100_000) as (bench, port):
        first, second, small = [await Client.connect(port) for _ in range(3)]
        body = json.dumps({**CHAT, "user": "u" * 60_000}).encode()
        first.post(body[:-1], length=len(body))
        await until(lambda: budget.held == len(body))
        if chunked:
            second.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            second.send(b"%x\r\n%b\r\n" % (len(body), body))
        else:
            second.post(b"", length=len(body))
        status, headers, _ = await second.answer()
        assert (status, headers["retry-after"]) == (503, "1")
        await answered(bench, small)
        first.send(body[-1:])
        await until(lambda: len(bench.engine.requests) == 2)
        bench.engine.deliver(1, "a", "length")
        assert (await first.answer())[0] == 200
        await until(lambda: budget.held == 0)
        for client in (first, second, small):
            client.writer.close()


async def test_memory_is_given_back_after_a_large_body(monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed = []
    monkeypatch.setattr(memory, "trim", lambda: trimmed.append(1))
    monkeypatch.setattr(body_budget, "_TRIM_S", 0)
    async with over_socket() as (_, port):
        client = await Client.connect(port)
        client.post(b"x" * 1_500_000)
        assert (await client.answer())[0] == 400
        await until(lambda: trimmed)
        client.writer.close()
