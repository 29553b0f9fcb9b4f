"""HTTP client: server-sent events over keep-alive connections, one connection for each request at a time.

It shares the machine with the server, so it does as little as it can: one write per request, and no look into the
events beyond where they end.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import replace

import httptools

from benchmarks.clients.events import EventSplitter, error_message
from benchmarks.clients.target import Plan, bodies, http_request
from benchmarks.clients.traces import RequestError, Run, Trace

_READ_BYTES = 1 << 18
_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_TLS.check_hostname = False
_TLS.verify_mode = ssl.CERT_NONE


class _Connection:
    """A connection and the answer on it. httptools calls the on_... methods."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._complete = False
        self._keep_alive = False

    async def open(self) -> None:
        """Connect.

        Raises:
            OSError: the server cannot be reached.
        """
        target = self._run.plan.target
        self._reader, self._writer = await asyncio.open_connection(
            target.host, target.port, limit=_READ_BYTES, ssl=_TLS if target.tls else None
        )
        self._parser = httptools.HttpResponseParser(self)

    def close(self) -> None:
        """Close without waiting."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._complete = True
        # The parser knows it only now: afterwards it has begun with the next message.
        self._keep_alive = self._parser.should_keep_alive()

    async def request(self, request: bytes, trace: Trace) -> None:
        """Make one request."""
        if self._reader is None or self._reader.at_eof():
            # Not opened yet, or closed by the server in the meantime.
            self.close()
            await self.open()
        try:
            await self._request(request, trace)
        except BaseException:
            self.close()
            raise
        if not self._keep_alive:
            self.close()

    async def _request(self, request: bytes, trace: Trace) -> None:
        assert self._reader is not None
        assert self._writer is not None
        self._complete, events = False, EventSplitter()
        self._writer.write(request)
        while not self._complete:
            data = await self._reader.read(_READ_BYTES)
            now = self._run.last_data = time.monotonic()
            if not data:
                raise RequestError("incomplete: connection closed")
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserError as error:
                raise RequestError(f"bad HTTP: {error}") from None
            found = events.feed(b"".join(self._body))
            self._body.clear()
            if found:
                trace.add(now, found, self._run.plan.tail)
        status = self._parser.get_status_code()
        if status != 200:
            raise RequestError(f"status {status}: {error_message(events.rest)}")
        if events.rest.strip():
            # A whole answer instead of a stream, or an event without an end.
            raise RequestError(f"incomplete event: {error_message(events.rest)}")


async def run_http(plan: Plan) -> list[Trace]:
    """Carry out `plan` over HTTP, with all connections open before the first request.

    Raises:
        OSError: the server cannot be reached.
    """
    run = Run(plan, [replace(asked, body=http_request(plan.target, asked.body)) for asked in bodies(plan)])
    connections = [_Connection(run) for _ in range(run.workers)]
    try:
        await asyncio.gather(*(connection.open() for connection in connections))
        return await run.carry_out([connection.request for connection in connections])
    finally:
        for connection in connections:
            connection.close()
