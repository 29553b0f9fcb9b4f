"""Budget of request bodies: the memory that those of all requests together may take."""

from __future__ import annotations

import asyncio

from openai_bls.core.errors import OverloadedError
from openai_bls.core.machine import memory

SMALL_BODY_BYTES = 16 * 1024
"""A body up to this size is always taken: large ones hold no ordinary request up."""

TRIM_S = 1.0
"""Seconds from the end of a large body until freed memory is given back."""
_TRIM_BYTES = 1 << 20


class BodyBudget:
    """Bytes of bodies from a request's head to its first event or answer. Belongs to the event loop's thread.

    Args:
        limit: bytes of all bodies together, small ones aside.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0
        """Bytes of the bodies that are being read or prepared."""
        self._trim: asyncio.TimerHandle | None = None

    def take(self, size: int, so_far: int = 0) -> None:
        """Reserve `size` bytes for a body that has `so_far` already.

        Raises:
            OverloadedError: there is no room just now.
        """
        if so_far + size > SMALL_BODY_BYTES and self.held + size > self._limit:
            raise OverloadedError("The server is reading as many large requests as it can; try again later.")
        self.held += size

    def give_back(self, size: int) -> None:
        """Free what a body has reserved altogether."""
        self.held -= size
        if size >= _TRIM_BYTES and self._trim is None:
            self._trim = asyncio.get_running_loop().call_later(TRIM_S, self._trim_now)

    def _trim_now(self) -> None:
        self._trim = None
        # On a thread, without the GIL.
        asyncio.get_running_loop().run_in_executor(None, memory.trim)
