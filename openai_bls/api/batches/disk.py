"""Threads that read and write the folder of files and batches, which the API keys take in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from openai_bls.core.keys.turns import FairExecutor

T = TypeVar("T")

# A key leaves a thread to others: with large files and many records a work takes seconds.
_RECORDS = FairExecutor(4, "file-records", leaves_one=lambda: True)
_COPIES = FairExecutor(4, "file-copies", leaves_one=lambda: True)
_PIECES = FairExecutor(4, "file-pieces", leaves_one=lambda: True)
_RESULTS = FairExecutor(4, "batch-results", leaves_one=lambda: True)


async def on_disk(key: str, work: Callable[..., T], *arguments: Any) -> T:
    """Result of `work`, which reads or writes records, in a turn of the key."""
    return await asyncio.wrap_future(_RECORDS.submit(key, partial(work, *arguments)))


async def copied(key: str, work: Callable[..., T], *arguments: Any) -> T:
    """Result of `work`, which copies a file, in a turn of the key."""
    return await asyncio.wrap_future(_COPIES.submit(key, partial(work, *arguments)))


def piece(key: str, work: Callable[..., T], *arguments: Any) -> Future[T]:
    """Future of `work`, which reads a piece of a file, in a turn of the key."""
    return _PIECES.submit(key, partial(work, *arguments))


async def in_thread(key: str, work: Callable[..., T], *arguments: Any) -> T:
    """Result of `work` on a batch, in a turn of the key. Cancelled, this ends with it: a lock is held as long."""
    return await to_its_end(asyncio.wrap_future(_RESULTS.submit(key, partial(work, *arguments))))


async def to_its_end(future: asyncio.Future[T]) -> T:
    """Result of a future. Cancelled, this ends with the future, which is not cancelled."""
    try:
        return await asyncio.shield(future)
    finally:
        await asyncio.wait([future])
