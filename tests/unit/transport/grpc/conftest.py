"""Event loop of tests with gRPC channels."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest


@pytest.fixture(scope="package")
def anyio_backend() -> str:
    """The event loop of all tests here."""
    return "asyncio"


@pytest.fixture(scope="package", autouse=True)
async def one_loop() -> AsyncIterator[None]:
    """Keep the loop to the last test: what gRPC has left for one that is closed fails the test that runs then."""
    yield
    await asyncio.sleep(0.25)
