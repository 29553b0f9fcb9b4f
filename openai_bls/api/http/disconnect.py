"""Work for a client that may go away before it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from openai_bls.api.http.connection.stream_connection import EXTENSION, StreamConnection

T = TypeVar("T")


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; if the client goes away first, `work` is cancelled. The request's body has been read.

    Raises:
        ClientDisconnect: the client has gone.
    """
    connection = request.scope.get("extensions", {}).get(EXTENSION)
    if connection is None:
        return await unless_gone(request.receive, work)
    return await _unless_lost(connection, work)


async def _unless_lost(connection: StreamConnection, work: Coroutine[Any, Any, T]) -> T:
    """`work` in the task of the request itself: a separate task and one that waits for the client cost as much as the
    rest of a request's way through HTTP."""
    task = asyncio.current_task()
    assert task is not None
    lost = False

    def cancel() -> None:
        nonlocal lost
        lost = True
        task.cancel()

    connection.when_lost(cancel)
    try:
        return await work
    except asyncio.CancelledError:
        if not lost:
            raise
        # As `asyncio.timeout` does; before Python 3.11 a task does not count.
        if hasattr(task, "uncancel"):
            task.uncancel()
        raise ClientDisconnect from None
    finally:
        connection.when_lost(None)


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The same by ASGI alone, for an application that is called without a connection.

    Raises:
        ClientDisconnect: the client has gone.
    """

    async def gone() -> None:
        # What it sends meanwhile is dropped.
        while (await receive())["type"] != "http.disconnect":
            pass

    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        working.cancel()
        waiting.cancel()


def resolve(future: asyncio.Future[None]) -> None:
    """End the waiting for `future`, unless it has ended."""
    if not future.done():
        future.set_result(None)
