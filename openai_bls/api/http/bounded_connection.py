"""Limits of a connection before its requests are admitted: size and time of a head, pace of a body, pipelining.

A request that asks for an upgrade, such as the h2c that Java's client asks for, is answered as if it did not (RFC 9110,
7.8). httptools ends such a request after its head.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal, cast

import httptools
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from openai_bls.api.common.encoding import encode
from openai_bls.core.errors import ApiError, InvalidRequestError, OverloadedError
from openai_bls.core.settings import OpenAiBlsSettings

MAX_HEAD_BYTES = 64 * 1024
"""Bytes of a request's path and headers."""
MAX_FRAMING_BYTES = 64 * 1024
"""Bytes of a chunked body that are none of its content: chunk extensions and trailers."""
MAX_PIPELINED = 16
"""Requests of one connection that wait behind the one that is being answered."""
MIN_BODY_BYTES = 32 * 1024
"""Bytes that a body must bring in every `body_timeout_s`, unless it ends."""
MAX_REFUSED_CONNECTIONS = 32
"""Connections beyond the limit that are open while they are told so; any more are cut."""

# Bytes of a chunk without extensions beyond its content: 16 hexadecimal digits and two line ends.
_CHUNK_FRAME_BYTES = 20

# Seconds that a refused client gets to read its answer, while what it still sends is dropped: closing at once would
# reset the connection, and the answer with it.
_LINGER_S = 5.0

Phase = Literal["idle", "head", "body"]


class _RefusalError(InvalidRequestError):
    """A request that is not read to its end."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class GatheringTransport:
    """Transport of a connection: what is written in one turn of the event loop goes out together.

    The head of a response and its first bytes are two writes of uvicorn; a system call, and a client that wakes up for
    it, cost more than either.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._gathered: list[bytes] = []
        self.is_closing = transport.is_closing
        self.get_extra_info = transport.get_extra_info
        self.can_write_eof = transport.can_write_eof
        self.abort = transport.abort

    def write(self, data: bytes) -> None:
        """Write at the end of this turn, or with the next `write_now`."""
        self._gathered.append(data)
        if len(self._gathered) == 1:
            self._loop.call_soon(self._flush)

    def write_now(self, data: bytes) -> None:
        """Write, after what has been gathered."""
        if self._gathered:
            self._gathered.append(data)
            self._flush()
        else:
            self._transport.write(data)

    def write_eof(self) -> None:
        """End this side of the connection."""
        self._flush()
        self._transport.write_eof()

    def close(self) -> None:
        """Close the connection once everything is written."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._gathered:
            data = b"".join(self._gathered)
            self._gathered.clear()
            self._transport.write(data)


class _ResponseTransport:
    """Transport as a response uses it: closing waits until the client has read."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close


class BoundedConnection(HttpToolsProtocol):
    """Connection that refuses what is too large, too slow or too much, with a JSON error where HTTP allows one.

    A request that arrives whole costs no timer.
    """

    def __init__(self, *args: Any, settings: OpenAiBlsSettings, **options: Any) -> None:
        super().__init__(*args, **options)
        self._settings = settings
        self._phase: Phase = "idle"
        """Part of a request that the client is sending."""
        self._began = False
        """A message has begun with the data that is being fed."""
        self._head_bytes = 0
        self._body_bytes = 0
        """Bytes of the body since the timer was set."""
        self._dropped_bytes = 0
        self._content_bytes = 0
        """Bytes of bodies and of plain chunk frames in the data that is being fed."""
        self._framing_bytes = 0
        """Bytes of the body that are neither."""
        self._deaf = False
        """Nothing that comes is read any more."""
        self._framing: list[tuple[bytes, bytes]] = []
        """Headers that tell where the body ends of a request that asks for an upgrade."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Refuse one connection too many; close one that stays silent."""
        super().connection_made(cast("asyncio.Transport", transport))
        self.gathering = GatheringTransport(self.transport, self.loop)
        self.transport = cast("asyncio.Transport", self.gathering)
        self._response_transport = _ResponseTransport(self.transport, self._close_after_response)
        excess = len(self.connections) - self._settings.max_connections
        if excess > MAX_REFUSED_CONNECTIONS:
            self.transport.abort()
        elif excess > 0:
            self._refuse(OverloadedError("The server has too many connections; try again later."))
        else:
            self._close_if_silent()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, and watch what it waits for."""
        if self._deaf:
            return
        self._began = False
        self._content_bytes = 0
        self._unset_keepalive_if_required()
        was_in_body = self._phase == "body"
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        if self._deaf or self.transport.is_closing():
            return
        if self._phase == "head":
            if not self._began:
                self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(_head_too_large())
            elif self._timer is None:
                self._timer = self.loop.call_later(self._settings.head_timeout_s, self._head_timed_out)
        elif self._phase == "body":
            self._body_bytes += len(data)
            if was_in_body and not self._began:
                self._framing_bytes = max(0, self._framing_bytes + len(data) - self._content_bytes)
            if self._framing_bytes > MAX_FRAMING_BYTES:
                self._refuse(_RefusalError(431, f"Chunk extensions and trailers exceed {MAX_FRAMING_BYTES} bytes."))
            elif self._timer is None:
                self._watch_body()
        elif self.cycle is None or self.cycle.response_complete:
            self._close_if_silent()

    def _feed(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as head:
                data = data[head.args[0] :]
            if self._framing and not self._deaf:
                # A parser that waits for this body. The head that tells it so is no request.
                lines = [b"POST / HTTP/1.1", *(b"%b: %b" % header for header in self._framing), b"\r\n"]
                self._framing, self._deaf = [], True
                self.parser = httptools.HttpRequestParser(self)
                self.parser.feed_data(b"\r\n".join(lines))
                self._deaf = False

    # Parser callbacks

    def on_message_begin(self) -> None:
        """A head begins."""
        if self._deaf:
            return
        super().on_message_begin()
        self._phase, self._began, self._head_bytes = "head", True, 0

    def on_url(self, url: bytes) -> None:
        """A piece of the path."""
        if not self._deaf:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; what follows a body counts for nothing."""
        if not self._deaf and self._phase == "head":
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Refuse the request by its head, or have it answered."""
        if self._deaf:
            return
        self._stop_timer()
        error = _head_problem(self.url, self.headers, self.parser.get_http_version())
        if error is None and len(self.pipeline) >= MAX_PIPELINED:
            error = OverloadedError(f"More than {MAX_PIPELINED} requests wait on this connection; read their answers.")
        if error is not None:
            # In its turn, after the answers to the requests before it.
            self._deaf = True
            self.app = Response(
                encode(error.body()), error.status, {"connection": "close"}, media_type="application/json"
            )
            # uvicorn does not take every path apart.
            self.url = b"/"
        super().on_headers_complete()
        self._phase, self._dropped_bytes, self._framing_bytes = "body", 0, 0
        if self.parser.should_upgrade():
            self._framing = [header for header in self.headers if _announces_body(*header)]
        self.cycle.transport = cast("asyncio.Transport", self._response_transport)

    def on_chunk_header(self) -> None:
        """A chunk begins."""
        self._content_bytes += _CHUNK_FRAME_BYTES

    def on_body(self, body: bytes) -> None:
        """A piece of a body; of one whose request is already answered not without end."""
        self._content_bytes += len(body)
        if self._deaf:
            return
        if self.cycle.response_complete:
            self._dropped_bytes += len(body)
            if self._dropped_bytes > self._settings.max_request_bytes:
                self._linger()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request has come whole."""
        if self._deaf or self._framing:
            return
        self._stop_timer()
        self._phase = "idle"
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Go on with the next request, unless the connection is to be closed."""
        if not self._deaf or self.pipeline:
            super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP."""
        self._refuse(_RefusalError(400, msg))

    # Time

    def _head_timed_out(self) -> None:
        self._refuse(_RefusalError(408, f"The head of the request took more than {self._settings.head_timeout_s} s."))

    def _watch_body(self) -> None:
        self._body_bytes = 0
        self._timer = self.loop.call_later(self._settings.body_timeout_s, self._body_timed_out)

    def _body_timed_out(self) -> None:
        # One that the server itself does not read just now is not late.
        if self.flow.read_paused or self._body_bytes >= MIN_BODY_BYTES:
            self._watch_body()
            return
        seconds = self._settings.body_timeout_s
        self._refuse(_RefusalError(408, f"The body of the request brought too little in {seconds} s."))

    def _close_if_silent(self) -> None:
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Ends

    def _refuse(self, error: ApiError) -> None:
        """Answer what has not come whole, and close."""
        self._stop_timer()
        self._deaf = True
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if self._phase != "body":
                # An answer to an earlier request is on its way: the last one.
                cycle.keep_alive = False
                return
            # Its body is the one that is missing.
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started or self.pipeline:
                self.transport.close()
                return
        elif self._phase == "body":
            self.transport.close()
            return
        self.transport.write(last_response(error))
        self._linger()

    def _close_after_response(self) -> None:
        """Close the connection after a response that is its last."""
        if self._phase == "idle" and not self._deaf:
            self.transport.close()
        else:
            self._linger()

    def _linger(self) -> None:
        """End our side, and drop what comes until the client has ended its own."""
        self._deaf = True
        self._stop_timer()
        self._unset_keepalive_if_required()
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._timer = self.loop.call_later(_LINGER_S, self.transport.abort)


def last_response(error: ApiError) -> bytes:
    """The response with an error that ends a connection."""
    body = encode(error.body())
    head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
    return bytes(STATUS_LINE[error.status]) + head + body


def _announces_body(name: bytes, value: bytes) -> bool:
    return name == b"transfer-encoding" or (name == b"content-length" and int(value) > 0)


def _head_too_large() -> ApiError:
    return _RefusalError(431, f"The head of the request is larger than {MAX_HEAD_BYTES} bytes.")


def _head_problem(url: bytes, headers: list[tuple[bytes, bytes]], http_version: str) -> ApiError | None:
    """Refusal of a head by its size, RFC 9112, 3.2 (Host) and RFC 9110, 10.1.1 (Expect); None if there is nothing
    against it."""
    size, hosts, is_odd = len(url), 0, False
    for name, value in headers:
        size += len(name) + len(value)
        if name == b"host":
            hosts += 1
        elif name == b"expect" and value.strip().lower() != b"100-continue":
            is_odd = True
    if size > MAX_HEAD_BYTES:
        return _head_too_large()
    if hosts > 1 or (not hosts and http_version == "1.1"):
        return _RefusalError(400, f"The request has {hosts} Host headers: exactly one is needed.")
    return _RefusalError(417, "The only expectation that is met is 100-continue.") if is_odd else None
