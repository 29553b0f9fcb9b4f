"""Event loops of tests with gRPC channels."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest


@pytest.fixture
async def settled() -> AsyncIterator[None]:
    """Keep the loop of a test longer than its channels: what gRPC has left for a closed one fails the next test."""
    yield
    await asyncio.sleep(0.05)
