"""Requests to the whole application, in process or over a socket, answered by a fake engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette

from openai_bls.api.app import create_app
from openai_bls.api.http.listening.listener import SharedListener
from openai_bls.api.http.listening.tls_files import TlsFiles
from openai_bls.api.http.uvicorn_server import HttpServer
from openai_bls.api.http.write_batcher import WriteBatcher
from tests.unit.core_support import WAIT_S, Answered, App, Bench, FakeEngineClient, ask, free_port, until


def application(bench: Bench) -> Starlette:
    """For the running event loop."""
    return create_app(bench.service, WriteBatcher(asyncio.get_running_loop()))


def asked(
    bench: Bench,
    path: str,
    body: bytes | dict[str, Any] = b"",
    feed: Callable[[], None] | None = None,
    headers: Sequence[tuple[str, str]] = (),
    method: str = "POST",
) -> Answered:
    """The answer to a request; `feed` is the engine's part, once it has the request."""

    async def main() -> Answered:
        task = asyncio.ensure_future(ask(application(bench), method, path, body, headers))
        await until(lambda: bench.engine.requests or task.done())
        if feed is not None:
            feed()
        answered = await asyncio.wait_for(task, WAIT_S)
        assert bench.service.in_progress == 0
        return answered

    return asyncio.run(main())


class Leaving:
    """A request whose client goes away when it is told to, and what it has been sent by then."""

    def __init__(self, app: App, path: str, body: dict[str, Any], *, method: str = "POST", query: str = "") -> None:
        self.sent = b""
        self._gone = asyncio.Event()
        self._messages = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
        scope = {"type": "http", "method": method, "path": path, "root_path": "", "query_string": query.encode()}
        self._task = asyncio.ensure_future(app({**scope, "headers": []}, self._receive, self._send))

    async def leave(self) -> None:
        """Go away, and wait until the application has noticed."""
        self._gone.set()
        await asyncio.wait_for(self._task, WAIT_S)

    async def _receive(self) -> dict[str, Any]:
        if self._messages:
            return self._messages.pop()
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent += message.get("body", b"")


async def given_up(app: App, engine: FakeEngineClient, path: str, body: dict[str, Any], first: str = "") -> None:
    """A request whose client goes away while the engine works on it, after the token `first` if it is given."""
    client = Leaving(app, path, body)
    await until(lambda: engine.requests)
    if first:
        engine.deliver(0, first)
    await client.leave()
    assert engine.cancelled == [engine.requests[0].request_id]


@asynccontextmanager
async def served(bench: Bench) -> AsyncIterator[int]:
    port = free_port()
    listener = SharedListener("127.0.0.1", port, owner=1)
    tls = TlsFiles.of(bench.service.settings)
    server = HttpServer(application(bench), bench.service, listener, tls)
    server.start()
    try:
        yield port
    finally:
        await server.stop()


@asynccontextmanager
async def over_socket(**settings: Any) -> AsyncIterator[tuple[Bench, int]]:
    bench = Bench(**settings)
    async with asyncio.timeout(WAIT_S), served(bench) as port:
        yield bench, port
        await until(lambda: bench.service.in_progress == 0)


def refused(bench: Bench, path: str, body: bytes | dict[str, Any]) -> tuple[int, str | None, str | None]:
    """Status, field and code of an error that comes before any work."""
    answered = asked(bench, path, body)
    error = answered.json()["error"]
    assert answered.status >= 400
    assert bench.engine.requests == []
    return answered.status, error["param"], error["code"]
