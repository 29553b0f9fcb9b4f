"""Limits of a connection before its requests are admitted: size, time and pieces of a request, pipelining.

A request that asks for an upgrade, such as the h2c that Java's client asks for, is answered as if it did not (RFC 9110,
7.8). httptools ends such a request after its head.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal, cast

import httptools
from starlette.responses import Response
from starlette.types import ASGIApp
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from openai_bls.api.common.encoding import encode
from openai_bls.api.http.sliced_connection import SlicedConnection
from openai_bls.api.http.transports import GatheringTransport, ResponseTransport
from openai_bls.api.http.unframed import Unframed
from openai_bls.core.errors import ApiError, InvalidRequestError, OverloadedError
from openai_bls.core.settings import OpenAiBlsSettings

MAX_HEAD_BYTES = 64 * 1024
"""Bytes of a request's path and headers."""
MAX_HEADERS = 256
"""Headers of a request."""
MAX_TRAILERS = 1024
"""Headers behind a chunked body."""
MAX_FRAMING_BYTES = 64 * 1024
"""Bytes of a chunked body that are none of its content: chunk extensions and trailers."""
FREE_CHUNKS = 64 * 1024
"""Chunks of a body, whatever their size; more of them if they are large."""
MIN_CHUNK_BYTES = 64
"""Bytes of content for each further chunk."""
MAX_BLANK_BYTES = 1024
"""Bytes of empty lines before a request."""
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


class _StoppedError(Exception):
    """End of parsing, from a callback of the parser."""


class BoundedConnection(SlicedConnection):
    """Connection that refuses what is too large, too slow or too much, with a JSON error where HTTP allows one.

    A request that arrives whole costs no timer. After a refusal, and after a request that closes the connection,
    nothing is parsed.
    """

    def __init__(self, *args: Any, settings: OpenAiBlsSettings, **options: Any) -> None:
        super().__init__(*args, **options)
        self._settings = settings
        self._phase: Phase = "idle"
        """Part of a request that the client is sending."""
        self._began = False
        """A message has begun with the data that is being fed."""
        self._blank_bytes = 0
        self._head_bytes = 0
        self._body_bytes = 0
        """Bytes of the body since the timer was set."""
        self._skipped_bytes = 0
        """Bytes of the body that have come after the answer."""
        self._content_bytes = 0
        """Bytes of bodies and of plain chunk frames in the data that is being fed."""
        self._framing_bytes = 0
        """Bytes of the body that are neither."""
        self._chunk_credit = 0
        """Bytes of content that pay for further chunks."""
        self._trailers = 0
        self._keep_alive = False
        """Whether the connection is kept, once the request that is being read has come whole and is answered."""
        self._is_ending = False
        """The server takes no further requests."""
        self._must_linger = False
        """The client may still be sending."""
        self._fault: ApiError | None = None
        """Why a callback has stopped the parser."""
        self._framing: list[tuple[bytes, bytes]] = []
        """Headers that tell where the body ends of a request that asks for an upgrade."""
        self._is_replaying = False
        """The parser is given these headers a second time."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Refuse one connection too many; close one that stays silent."""
        super().connection_made(transport)
        self.gathering = GatheringTransport(self.transport, self.loop)
        self.transport = cast("asyncio.Transport", self.gathering)
        self._response_transport = ResponseTransport(self.transport, self._close_after_response)
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

    def shutdown(self) -> None:
        """Let the answer that is under way be the last."""
        self._is_ending = True
        super().shutdown()

    def parse(self, data: bytes | memoryview) -> None:
        """Feed the parser, and watch what it waits for."""
        self._began = False
        self._content_bytes = 0
        phase_before = self._phase
        if phase_before == "body" and self._content_left > 0 and self.cycle.response_complete:
            data = self._skipped(data)
        try:
            self._feed(data)
        except httptools.HttpParserError:
            if self._fault is not None:
                self._refuse(self._fault)
            elif not self._deaf:
                self.send_400_response("Invalid HTTP request received.")
        if self._deaf or self.transport.is_closing():
            return
        if self._phase == "idle" and phase_before == "idle" and not self._began:
            self._blank_bytes += len(data)
            if self._blank_bytes > MAX_BLANK_BYTES:
                self._refuse(_RefusalError(400, f"More than {MAX_BLANK_BYTES} bytes of empty lines."))
            return
        self._unset_keepalive_if_required()
        if self._phase == "head":
            self._watch_head(len(data))
        elif self._phase == "body":
            self._watch_body(len(data), may_be_framing=phase_before == "body" and not self._began)
        elif self.cycle is None or self.cycle.response_complete:
            self._close_if_silent()

    def _feed(self, data: bytes | memoryview) -> None:
        while data and not self._deaf:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as head:
                data = data[head.args[0] :]
            if self._framing:
                # A parser that waits for this body. The head that tells it so is no request.
                lines = [b"POST / HTTP/1.1", *(b"%b: %b" % header for header in self._framing), b"\r\n"]
                self._framing, self._is_replaying = [], True
                self.parser = httptools.HttpRequestParser(self)
                self.parser.feed_data(b"\r\n".join(lines))
                self._is_replaying = False

    def _skipped(self, data: bytes | memoryview) -> bytes | memoryview:
        """Bytes behind a body that nobody wants any more."""
        size = min(len(data), self._content_left)
        self._content_left -= size
        self._skipped_bytes += size
        if self._skipped_bytes > self._settings.max_request_bytes:
            self._linger()
        elif not self._content_left:
            self.parser = httptools.HttpRequestParser(self)
            self.on_message_complete()
        return data[size:]

    # Parser callbacks

    def on_message_begin(self) -> None:
        """A head begins."""
        if self._is_replaying:
            return
        super().on_message_begin()
        self._phase, self._began, self._head_bytes, self._blank_bytes = "head", True, 0, 0

    def on_url(self, url: bytes) -> None:
        """A piece of the path."""
        if not self._is_replaying:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; what follows a body counts for nothing."""
        if self._is_replaying:
            return
        if self._phase == "head":
            super().on_header(name, value)
            return
        self._trailers += 1
        if self._trailers > MAX_TRAILERS:
            self._stop(_RefusalError(431, f"The body has more than {MAX_TRAILERS} trailers."))

    def on_headers_complete(self) -> None:
        """Refuse the request by its head, or have it answered."""
        if self._is_replaying:
            return
        self._stop_timer()
        error = _head_problem(self.url, self.headers, self.parser.get_http_version())
        if error is None and len(self.pipeline) >= MAX_PIPELINED:
            error = OverloadedError(f"More than {MAX_PIPELINED} requests wait on this connection; read their answers.")
        if error is not None:
            # In its turn, after the answers to the requests before it.
            self.app = _refusal(error)
            # uvicorn does not take every path apart.
            self.url = b"/"
        unframed = None
        if self.parser.get_http_version() == "1.0":
            # The connection ends with this answer.
            self.app = unframed = Unframed(cast("ASGIApp", self.app))
        super().on_headers_complete()
        cycle = self.cycle
        if unframed is not None:
            unframed.cycle = cycle
        cycle.transport = cast("asyncio.Transport", self._response_transport)
        self._phase, self._skipped_bytes, self._framing_bytes, self._trailers = "body", 0, 0, 0
        self._chunk_credit = FREE_CHUNKS * MIN_CHUNK_BYTES
        self._content_left, is_chunked = _body_of(self.headers)
        self._keep_alive = cycle.keep_alive
        if is_chunked:
            # An answer before its end is the last one: where it ends only parsing would tell.
            cycle.keep_alive = False
        if error is not None:
            self._must_linger = True
            self.stop_parsing()
            raise _StoppedError
        if self.parser.should_upgrade():
            self._framing = [header for header in self.headers if _announces_body(*header)]

    def on_chunk_header(self) -> None:
        """A chunk begins."""
        self._content_bytes += _CHUNK_FRAME_BYTES
        self._chunk_credit -= MIN_CHUNK_BYTES
        if self._chunk_credit < 0:
            self._stop(
                _RefusalError(
                    413,
                    f"The body comes in chunks that are too small: beyond {FREE_CHUNKS} of them there may be one for "
                    f"every {MIN_CHUNK_BYTES} bytes of content.",
                )
            )

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        size = len(body)
        self._content_bytes += size
        self._content_left -= size
        self._chunk_credit += size
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        """A request has come whole."""
        if self._is_replaying or self._framing:
            return
        self._stop_timer()
        self._phase = "idle"
        cycle = self.cycle
        cycle.keep_alive = self._keep_alive and not self._is_ending
        if not cycle.keep_alive:
            self.stop_parsing()
        if not cycle.response_complete:
            cycle.more_body = False
            cycle.message_event.set()

    def on_response_complete(self) -> None:
        """Go on with the next request, unless the connection is to be closed."""
        if not self._deaf or self.pipeline:
            super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP."""
        self._refuse(_RefusalError(400, msg))

    def _stop(self, error: ApiError) -> None:
        """End parsing from within a callback, with a refusal."""
        self._fault = error
        raise _StoppedError

    # Time

    def _watch_head(self, size: int) -> None:
        if not self._began:
            self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES or len(self.headers) > MAX_HEADERS:
            self._refuse(_head_too_large())
        elif self._timer is None:
            self._timer = self.loop.call_later(self._settings.head_timeout_s, self._head_timed_out)

    def _head_timed_out(self) -> None:
        if self._unparsed:
            # It waits for us.
            self._timer = self.loop.call_later(self._settings.head_timeout_s, self._head_timed_out)
            return
        self._refuse(_RefusalError(408, f"The head of the request took more than {self._settings.head_timeout_s} s."))

    def _watch_body(self, size: int, *, may_be_framing: bool) -> None:
        self._body_bytes += size
        if may_be_framing:
            self._framing_bytes = max(0, self._framing_bytes + size - self._content_bytes)
        if self._framing_bytes > MAX_FRAMING_BYTES:
            self._refuse(_RefusalError(431, f"Chunk extensions and trailers exceed {MAX_FRAMING_BYTES} bytes."))
        elif self._timer is None:
            self._time_body()

    def _time_body(self) -> None:
        self._body_bytes = 0
        self._timer = self.loop.call_later(self._settings.body_timeout_s, self._body_timed_out)

    def _body_timed_out(self) -> None:
        # One that the server itself does not read just now is not late.
        if self.flow.read_paused or self._body_bytes >= MIN_BODY_BYTES:
            self._time_body()
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
        self._must_linger = True
        self.stop_parsing()
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            if self._phase != "body":
                self.transport.write(last_response(error))
            self._linger()
        elif self._phase != "body":
            # An answer to an earlier request is on its way: the last one.
            cycle.keep_alive = False
        elif self.pipeline:
            # The answers to those before it are on their way.
            cycle.keep_alive = False
            self.pipeline[0] = (cycle, cast("Any", _refusal(error)))
        else:
            # Its body is the one that is missing.
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.close()
                return
            self.transport.write(last_response(error))
            self._linger()

    def _close_after_response(self) -> None:
        """Close the connection after a response that is its last."""
        if self._phase == "idle" and not self._must_linger and not self._discarded_bytes:
            self.transport.close()
        else:
            self._linger()

    def _linger(self) -> None:
        """End our side, and drop what comes until the client has ended its own."""
        self._stop_timer()
        self._unset_keepalive_if_required()
        self.stop_parsing()
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._timer = self.loop.call_later(_LINGER_S, self.transport.abort)


def _refusal(error: ApiError) -> Response:
    """The same as an answer in its turn."""
    headers = {"connection": "close", **error.headers}
    return Response(encode(error.body()), error.status, headers, media_type="application/json")


def last_response(error: ApiError) -> bytes:
    """The response with an error that ends a connection."""
    body = encode(error.body())
    head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n" % len(body)
    more = "".join(f"{name.lower()}: {value}\r\n" for name, value in error.headers.items()).encode()
    return b"".join((bytes(STATUS_LINE[error.status]), head, more, b"\r\n", body))


def _announces_body(name: bytes, value: bytes) -> bool:
    return name == b"transfer-encoding" or (name == b"content-length" and int(value) > 0)


def _body_of(headers: list[tuple[bytes, bytes]]) -> tuple[int, bool]:
    """Declared bytes of a body, which the parser has checked, and whether it is chunked."""
    for name, value in headers:
        if name == b"content-length":
            return int(value), False
        if name == b"transfer-encoding":
            return 0, True
    return 0, False


def _head_too_large() -> ApiError:
    return _RefusalError(
        431, f"The head of the request is larger than {MAX_HEAD_BYTES} bytes, or has more than {MAX_HEADERS} headers."
    )


def _head_problem(url: bytes, headers: list[tuple[bytes, bytes]], http_version: str) -> ApiError | None:
    """Refusal of a head by its version of HTTP, its size, RFC 9112, 3.2 (Host) and RFC 9110, 10.1.1 (Expect); None if
    there is nothing against it."""
    if http_version not in ("1.0", "1.1"):
        # A line without a version is one of HTTP/0.9, whose answers have no head.
        status = 400 if http_version == "0.9" else 505
        return _RefusalError(status, "The request line must end in HTTP/1.1 or HTTP/1.0.")
    size, hosts, is_odd = len(url), 0, False
    for name, value in headers:
        size += len(name) + len(value)
        if name == b"host":
            hosts += 1
        elif name == b"expect" and value.strip().lower() != b"100-continue":
            is_odd = True
    if size > MAX_HEAD_BYTES or len(headers) > MAX_HEADERS:
        return _head_too_large()
    if hosts > 1 or (not hosts and http_version == "1.1"):
        return _RefusalError(400, f"The request has {hosts} Host headers: exactly one is needed.")
    return _RefusalError(417, "The only expectation that is met is 100-continue.") if is_odd else None
