"""The HTTP client: server-sent events over keep-alive connections, one connection for each request at a time.

It shares the machine with the server, so it does as little as it can: no tasks, no awaits, one write a request, and no
look into the events beyond where they end.
"""

from __future__ import annotations

import asyncio
import time
from typing import cast

import httptools

from benchmarks.events import EventSplitter, error_message
from benchmarks.target import Plan, bodies, http_request
from benchmarks.traces import Supply, Trace

_WATCH_INTERVAL_S = 1.0


class HttpLoad:
    """One run of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.supply = Supply(plan, [http_request(plan.target, body) for body in bodies(plan)])
        self._connections: set[_Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()

    async def run(self) -> list[Trace]:
        """Open all connections, then make all requests.

        Raises:
            OSError: the server cannot be reached.
        """
        await asyncio.gather(*(self._open() for _ in range(self.supply.workers)))
        watch = asyncio.ensure_future(self._watch())
        try:
            self.supply.start()
            for connection in list(self._connections):
                connection.next_request()
            await self.supply.finished
        finally:
            watch.cancel()
            for connection in self._connections:
                connection.close()
        return self.supply.traces

    def lost(self, connection: _Connection) -> None:
        """A connection has closed; another takes its place while there are requests left."""
        self._connections.discard(connection)
        if self.supply.more() and not self.supply.finished.done():
            task = asyncio.ensure_future(self._reopen())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self) -> _Connection:
        loop = asyncio.get_running_loop()
        target = self.plan.target
        _, connection = await loop.create_connection(lambda: _Connection(self), target.host, target.port)
        self._connections.add(connection)
        return connection

    async def _reopen(self) -> None:
        try:
            connection = await self._open()
        except OSError as error:
            self.supply.fail(error)
            return
        connection.next_request()

    async def _watch(self) -> None:
        """Give up on requests that take too long; one timer for all."""
        while True:
            await asyncio.sleep(_WATCH_INTERVAL_S)
            stalled = self.supply.stalled()
            if stalled:
                self.supply.stop()
            too_old = time.monotonic() - self.plan.timeout_s
            for connection in list(self._connections):
                connection.give_up(stalled, too_old)


class _Connection(asyncio.Protocol):
    """A connection and the request on it. httptools calls the on_... methods."""

    def __init__(self, load: HttpLoad) -> None:
        self._load = load
        self._supply = load.supply
        self._keep = load.plan.tail
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._trace: Trace | None = None
        self._events = EventSplitter()
        self._error_body = b""
        self._status = 0
        self._now = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def next_request(self) -> None:
        """Send the next request, if there is one."""
        if self._transport is None:
            return
        request = self._supply.take()
        if request is None:
            return
        self._events = EventSplitter()
        self._error_body = b""
        self._trace = Trace(time.monotonic())
        self._transport.write(request)

    def close(self) -> None:
        """Close without waiting."""
        if self._transport is not None:
            self._transport.abort()

    def give_up(self, stalled: str, too_old: float) -> None:
        """Close if the whole run has `stalled`, or if the request on this connection was sent before `too_old`."""
        if self._trace is not None and (stalled or self._trace.started < too_old):
            self._fail(stalled or "incomplete: timed out")
            self.close()

    def data_received(self, data: bytes) -> None:
        self._now = self._supply.last_data = time.monotonic()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"bad HTTP: {error}")
            self.close()

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._trace is None:
            return
        if self._status != 200:
            self._error_body += body
            return
        events = self._events.feed(body)
        if events:
            self._trace.add(self._now, events, self._keep)

    def on_message_complete(self) -> None:
        if self._status != 200:
            self._fail(f"status {self._status}: {error_message(self._error_body)}")
        elif self._events.rest.strip():
            # A whole answer instead of a stream, or an event without an end.
            self._fail(f"incomplete event: {error_message(self._events.rest)}")
        else:
            self._end()
        if not self._parser.should_keep_alive():
            self.close()
        elif self._supply.plan.pause_s:
            asyncio.get_running_loop().call_later(self._supply.pause_s(), self.next_request)
        else:
            self.next_request()

    def connection_lost(self, error: Exception | None) -> None:
        self._fail("incomplete: connection closed")
        self._transport = None
        self._load.lost(self)

    def _fail(self, failure: str) -> None:
        if self._trace is not None:
            self._trace.failure = failure
            self._end()

    def _end(self) -> None:
        trace, self._trace = self._trace, None
        if trace is not None:
            trace.ended = time.monotonic()
            self._supply.finish(trace)


async def run_http(plan: Plan) -> list[Trace]:
    """Carry out `plan` over HTTP.

    Raises:
        OSError: the server cannot be reached.
    """
    return await HttpLoad(plan).run()
