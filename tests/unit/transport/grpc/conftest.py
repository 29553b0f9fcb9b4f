"""Event loop of tests with gRPC channels, and a server that ends its streams too early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest


@pytest.fixture(scope="package")
def anyio_backend() -> str:
    """The event loop of all tests here."""
    return "asyncio"


@pytest.fixture(scope="package", autouse=True)
async def one_loop(anyio_backend: str) -> AsyncIterator[None]:
    """Keep the loop to the last test: what gRPC has left for one that is closed fails the test that runs then."""
    yield
    await asyncio.sleep(0.25)


@pytest.fixture
def too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server ends each stream at the moment in which the client has no further request."""

    async def done_writing(_: Any) -> None:
        raise grpc.aio.InternalError("Failed 'execute_batch'")

    monkeypatch.setattr("grpc.aio._call.StreamStreamCall.done_writing", done_writing)
