"""Host of images: an HTTP server that answers each path as the test says, well or badly."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]
"""Bytes of a whole answer, or what writes one."""


def ok(body: bytes, *headers: str) -> bytes:
    """An answer that has `body`."""
    lines = ["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def redirect(location: str, status: int = 302) -> bytes:
    """An answer that names another place."""
    return f"HTTP/1.1 {status} Moved\r\nLocation: {location}\r\nContent-Length: 4\r\n\r\nmove".encode()


async def drips(writer: asyncio.StreamWriter) -> None:
    """A byte a tenth of a second."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.1)


class ImageHost:
    """A running host. Its `requests` are the heads that it has got."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.requests: list[str] = []
        self.open = 0
        self.port = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.requests.append(head)
                answer = self.answers.get(head.split()[1], b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                if isinstance(answer, bytes):
                    writer.write(answer)
                    await writer.drain()
                else:
                    await answer(writer)
        finally:
            self.open -= 1
            writer.close()

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, tls: ssl.SSLContext | None = None, port: int = 0) -> AsyncIterator[ImageHost]:
        """A host on a port of 127.0.0.1; 0 is a free one."""
        host = cls()
        server = await asyncio.start_server(host._serve, "127.0.0.1", port, ssl=tls)
        host.port = server.sockets[0].getsockname()[1]
        try:
            yield host
        finally:
            server.close()
