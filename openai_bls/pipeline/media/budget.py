"""Budgets of images and of audio: the memory that those of all requests together may take, encoded and decoded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from openai_bls.core.errors import OverloadedError
from openai_bls.core.keys.in_flight import InFlight


class MediaBudget:
    """Bytes of images or of audio, from when they are fetched or decoded until their request has ended. For any thread.

    Args:
        limit: most bytes at a time.
        several: tells whether there are several API keys, each of which leaves room for others.
        what: what takes them, with `many` or `much`, in messages to the client.
        setting: name of the setting that gives the limit.
    """

    def __init__(
        self,
        limit: int,
        several: Callable[[], bool] = lambda: False,
        *,
        what: str = "many images",
        setting: str = "max_image_memory_bytes",
    ) -> None:
        self._bytes = InFlight(limit, several)
        self._full = (
            f"The server has as {what} in memory as it may, or as one API key may ({setting}); try again later."
        )

    @property
    def held(self) -> int:
        """Bytes that are held now."""
        return self._bytes.held

    def lease(self, key: str = "") -> MediaLease:
        """A new part of the budget, for one request of an API key."""
        return MediaLease(self, key)

    def take(self, key: str, size: int) -> None:
        """Reserve `size` bytes.

        Raises:
            OverloadedError: there is no room for the key just now, or never will be.
        """
        if not self._bytes.take(key, size):
            raise OverloadedError(self._full)

    def give_back(self, key: str, size: int) -> None:
        """Free `size` bytes."""
        self._bytes.give_back(key, size)


class MediaLease:
    """Part of the budget that one request holds. A context manager, which gives it back. For any thread."""

    def __init__(self, budget: MediaBudget, key: str) -> None:
        self._budget = budget
        self._key = key
        self._lock = threading.Lock()
        self._held = 0
        self._ended = False

    @property
    def held(self) -> int:
        """Bytes of it."""
        return self._held

    def take(self, size: int) -> None:
        """Reserve `size` bytes more.

        Raises:
            OverloadedError: there is no room, or the request has ended.
        """
        with self._lock:
            if self._ended:
                raise OverloadedError("The request has ended.")
            self._budget.take(self._key, size)
            self._held += size

    def give_back(self, size: int) -> None:
        """Free `size` bytes of it; nothing once it has ended."""
        with self._lock:
            if not self._ended:
                self._budget.give_back(self._key, size)
                self._held -= size

    def end(self) -> None:
        """Free all of it; harmless if done again."""
        with self._lock:
            if not self._ended:
                self._ended = True
                self._budget.give_back(self._key, self._held)
                self._held = 0

    def __enter__(self) -> MediaLease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()
