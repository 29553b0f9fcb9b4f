"""Connections to /v1 over a socket, in bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.unit.api.http_support import over_socket
from tests.unit.core_support import Bench, events, until

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
CHAT_TEXT = json.dumps(CHAT).encode()
STREAM_TEXT = json.dumps({**CHAT, "stream": True}).encode()
VERSION = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"


class Client:
    """One connection, in bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.send = writer.write

    @classmethod
    async def connect(cls, port: int, context: ssl.SSLContext | None = None) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=context))

    def post(self, body: bytes = CHAT_TEXT, *headers: str, length: int | None = None) -> None:
        lines = ["POST /v1/chat/completions HTTP/1.1", "Host: x", f"Content-Length: {length or len(body)}", *headers]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        """The next response: status, headers, JSON body."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])}
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return int(head[0].split()[1]), headers, json.loads(body) if body else None

    async def status(self) -> int:
        return (await self.answer())[0]

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


@asynccontextmanager
async def connected(
    count: int = 1, *, context: ssl.SSLContext | None = None, **settings: Any
) -> AsyncIterator[tuple[Any, ...]]:
    """A bench, its port, and so many clients, of TLS with `context`."""
    async with over_socket(**settings) as (bench, port):
        clients = [await Client.connect(port, context) for _ in range(count)]
        yield bench, port, *clients
        for client in clients:
            client.writer.close()


async def generated(bench: Bench, client: Client, count: int = 1) -> None:
    """The answer to the chat that the engine gets as number `count`."""
    await until(lambda: len(bench.engine.requests) == count)
    bench.engine.deliver(count - 1, "a", "length")
    assert await client.status() == 200


async def answered(bench: Bench, client: Client) -> None:
    """A chat on a connection that is in order."""
    count = len(bench.engine.requests)
    client.post()
    await generated(bench, client, count + 1)


def content_of(received: bytes) -> list[str]:
    """The pieces of content in a stream's response with chunked transfer encoding."""
    _, _, body = received.partition(b"\r\n\r\n")
    whole = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        whole += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    chunks = [json.loads(event) for event in events(whole) if event != "[DONE]"]
    return [choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]]


async def streamed_to_a_slow_reader(bench: Bench, slow: Client, quick: Client, pieces: Sequence[str]) -> None:
    """A stream to a client that does not read until its end gets there whole, and holds no other up.

    Args:
        bench: what answers.
        slow: reads only when all is written.
        quick: reads as it is written.
        pieces: contents for the slow one, more than all buffers on the way hold.
    """
    for client in (slow, quick):
        client.post(STREAM_TEXT, "Connection: close")
    await until(lambda: len(bench.engine.requests) == 2)
    for at, piece in enumerate(pieces):
        bench.engine.deliver(0, piece)
        if at % 20 == 0:
            bench.engine.deliver(1, f"quick{at};")
            await quick.reader.readuntil(b"quick%d;" % at)
    for number in range(2):
        bench.engine.deliver(number, "", "length")
    received = await slow.reader.read()
    assert "".join(content_of(received)) == "".join(pieces)
    assert received.count(b"data: [DONE]") == 1
    assert b"data: [DONE]" in await quick.reader.read()
