"""Limits of a connection before its requests are admitted: size, time and pieces of a request, pipelining.

A request that asks for an upgrade, as Java's client does for h2c, is answered as if it did not (RFC 9110, 7.8).
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal, cast

import httptools
from starlette.types import ASGIApp
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

from openai_bls.api.http.connection import refusals
from openai_bls.api.http.connection.body_bounds import BodyBounds
from openai_bls.api.http.connection.refusals import RefusalError, StoppedError, last_response
from openai_bls.api.http.connection.sliced_connection import SlicedConnection
from openai_bls.api.http.connection.transports import GatheringTransport, ResponseTransport
from openai_bls.api.http.connection.unframed import Unframed
from openai_bls.core.errors import ApiError, OverloadedError
from openai_bls.core.settings import OpenAiBlsSettings

MAX_BLANK_BYTES = 1024
"""Bytes of empty lines before a request."""
MAX_PIPELINED = 16
"""Requests of one connection that wait behind the one that is being answered."""
MIN_BODY_BYTES = 32 * 1024
"""Bytes that a body must bring in every `body_timeout_s`, unless it ends."""
MAX_REFUSED_CONNECTIONS = 32
"""Connections beyond the limit that are open while they are told so; any more are cut."""

# Seconds that a refused client gets to read its answer, while what it still sends is dropped: closing at once would
# reset the connection, and the answer with it.
_LINGER_S = 5.0

Phase = Literal["idle", "head", "body"]


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
        self._bounds = BodyBounds()
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
        self._bounds.feed()
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
                self._refuse(RefusalError(400, f"More than {MAX_BLANK_BYTES} bytes of empty lines."))
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
        """Drop what belongs to a body that nobody reads any more; the bytes behind it."""
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
        self._stop_for(self._bounds.trailer())

    def on_headers_complete(self) -> None:
        """Refuse the request by its head, or have it answered."""
        if self._is_replaying:
            return
        self._stop_timer()
        error = refusals.head_problem(self.url, self.headers, self.parser.get_http_version())
        if error is None and len(self.pipeline) >= MAX_PIPELINED:
            error = OverloadedError(f"More than {MAX_PIPELINED} requests wait on this connection; read their answers.")
        if error is not None:
            # In its turn, after the answers to the requests before it.
            self.app = refusals.refusal(error)
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
        self._phase, self._skipped_bytes = "body", 0
        self._bounds.begin()
        self._content_left, is_chunked = refusals.body_of(self.headers)
        self._keep_alive = cycle.keep_alive
        if is_chunked:
            # An answer before its end is the last one: where it ends only parsing would tell.
            cycle.keep_alive = False
        if error is not None:
            self._must_linger = True
            self.stop_parsing()
            raise StoppedError
        if self.parser.should_upgrade():
            self._framing = [header for header in self.headers if refusals.announces_body(*header)]

    def on_chunk_header(self) -> None:
        """A chunk begins."""
        self._stop_for(self._bounds.begin_chunk())

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self._bounds.content(len(body))
        self._content_left -= len(body)
        if (cycle := self.cycle).response_complete:
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
        self._refuse(RefusalError(400, msg))

    def _stop_for(self, error: ApiError | None) -> None:
        """End parsing from within a callback if there is a refusal."""
        if error is not None:
            self._fault = error
            raise StoppedError

    # Time

    def _watch_head(self, size: int) -> None:
        if not self._began:
            self._head_bytes += size
        if (error := refusals.size_problem(self._head_bytes, len(self.headers))) is not None:
            self._refuse(error)
        elif self._timer is None:
            self._timer = self.loop.call_later(self._settings.head_timeout_s, self._head_timed_out)

    def _head_timed_out(self) -> None:
        if self._unparsed:  # it waits for us
            self._timer = self.loop.call_later(self._settings.head_timeout_s, self._head_timed_out)
            return
        self._refuse(RefusalError(408, f"The head of the request took more than {self._settings.head_timeout_s} s."))

    def _watch_body(self, size: int, *, may_be_framing: bool) -> None:
        self._body_bytes += size
        if may_be_framing and (error := self._bounds.end_feed(size)) is not None:
            self._refuse(error)
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
        self._refuse(RefusalError(408, f"The body of the request brought too little in {seconds} s."))

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
        """Answer a request that has not come whole, and close."""
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
            self.pipeline[0] = (cycle, cast("Any", refusals.refusal(error)))
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
