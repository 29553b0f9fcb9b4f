"""Budgets of request bodies, and of answers that clients have not read: the memory that all together may take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from openai_bls.core.errors import OverloadedError
from openai_bls.core.keys.in_flight import InFlight
from openai_bls.core.machine import memory

SMALL_BODY_BYTES = 16 * 1024
"""A body up to this size is always taken: large ones hold no ordinary request up."""

TRIM_S = 1.0
"""Seconds from the end of a large body until freed memory is given back."""
_TRIM_BYTES = 1 << 20


class BodyBudget:
    """Bytes of bodies from a request's head to its first event or answer, or of answers. Belongs to the event loop's
    thread.

    Args:
        limit: bytes of all bodies together, small ones aside.
        several: tells whether there are several API keys, each of which leaves room for others.
        full: what there is as much of as there may be, for a message to the client.
    """

    def __init__(
        self, limit: int, several: Callable[[], bool] = lambda: False, full: str = "is reading as many large requests"
    ) -> None:
        self._bytes = InFlight(limit, several)
        self._full = f"The server {full} as it can, or as one API key may have; try again later."
        self._trim: asyncio.TimerHandle | None = None

    @property
    def held(self) -> int:
        """Bytes that are taken."""
        return self._bytes.held

    def take(self, key: str, size: int, so_far: int = 0) -> None:
        """Reserve `size` bytes for a body of an API key that has `so_far` already.

        Raises:
            OverloadedError: there is no room for the key just now.
        """
        if not self._bytes.take(key, size, free=so_far + size <= SMALL_BODY_BYTES):
            raise OverloadedError(self._full)

    def give_back(self, key: str, size: int) -> None:
        """Free what a body has reserved altogether."""
        self._bytes.give_back(key, size)
        if size >= _TRIM_BYTES and self._trim is None:
            self._trim = asyncio.get_running_loop().call_later(TRIM_S, self._trim_now)

    def _trim_now(self) -> None:
        self._trim = None
        # On a thread, without the GIL.
        asyncio.get_running_loop().run_in_executor(None, memory.trim)


class UnreadBytes:
    """Bytes of one stream that its client has not read.

    Args:
        budget: budget that they are of.
        key: name of the API key that it is for.
    """

    def __init__(self, budget: BodyBudget, key: str) -> None:
        self._budget = budget
        self._key = key
        self._held = 0

    def take(self, size: int) -> None:
        """Count `size` bytes more.

        Raises:
            OverloadedError: there is no room for them.
        """
        self._budget.take(self._key, size, self._held)
        self._held += size

    def give_back(self) -> None:
        """Count none any more: they have been read, or never will be."""
        if self._held:
            self._budget.give_back(self._key, self._held)
            self._held = 0
