"""A connection of /v1 without a socket: what it is given in each turn, and what it writes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import httptools
import uvicorn
from uvicorn.server import ServerState

from openai_bls.api.http.connection.stream_connection import StreamConnection
from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.pipeline.slices import Turns
from tests.unit.core_support import until

READ_BYTES = 256 * 1024
"""Bytes that asyncio reads at once."""


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers with its path and the body; `/refused` with 401, before the body."""
    status, body = 401, b"refused"
    if scope["path"] != "/refused":
        status, body, more = 200, scope["path"].encode() + b" ", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            more = message["more_body"]
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


class Counted(httptools.HttpRequestParser):
    """A parser that notes how much it is fed."""

    fed: list[int]

    def feed_data(self, data: Any) -> None:
        type(self).fed.append(len(data))
        super().feed_data(data)


class Connection(StreamConnection):
    """A connection that counts the pieces that its parser finds."""

    pieces = 0

    def on_message_begin(self) -> None:
        self.pieces += 1
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.pieces += 1
        super().on_header(name, value)

    def on_chunk_header(self) -> None:
        self.pieces += 1
        super().on_chunk_header()

    def on_body(self, body: bytes) -> None:
        self.pieces += 1
        super().on_body(body)


class Wire(asyncio.Transport):
    """Transport of one connection, and the client at its other end.

    Args:
        turns: queue of all connections.
        segments: what the client sends; each is read by itself.
        settings: settings of the connection.
    """

    def __init__(self, turns: Turns, segments: Sequence[bytes] = (), **settings: Any) -> None:
        super().__init__()
        self.written = b""
        self.is_paused = False
        self.is_closed = False
        self.has_ended = False
        self.segments = [
            segment[at : at + READ_BYTES] for segment in segments for at in range(0, len(segment), READ_BYTES)
        ]
        self.segments.reverse()
        self.server = ServerState()
        config = uvicorn.Config(app, http=StreamConnection, ws="none", lifespan="off", log_config=None)
        self.connection = Connection(
            config=config, server_state=self.server, app_state={}, settings=OpenAiBlsSettings(**settings), turns=turns
        )
        self.connection.connection_made(self)

    def read(self) -> bool:
        """Hand the next segment over, as the event loop does; False if there is none, or it must not."""
        if self.is_paused or self.is_closed or not self.segments:
            return False
        self.connection.data_received(self.segments.pop())
        return True

    async def done(self, answers: int) -> None:
        """Wait until so many answers are there, and all is read that is going to be."""

        def is_done() -> bool:
            is_over = self.is_closed or not self.segments
            return not self.read() and is_over and (self.is_closed or len(self.answers()) >= answers)

        await until(is_done)

    def answers(self) -> list[tuple[int, bytes]]:
        """Status and body of each answer."""
        rest, found = self.written, []
        while rest:
            head, _, rest = rest.partition(b"\r\n\r\n")
            lines = head.lower().split(b"\r\n")
            size = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
            found.append((int(lines[0].split()[1]), rest[:size]))
            rest = rest[size:]
        return found

    # The transport

    def write(self, data: Any) -> None:
        assert not self.is_closed
        assert not self.has_ended
        self.written += bytes(data)

    def write_eof(self) -> None:
        self.has_ended = True

    def can_write_eof(self) -> bool:
        return True

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    abort = close

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return cast("Any", default)
