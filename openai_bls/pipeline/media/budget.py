"""Budget of images: the memory that the encoded and decoded images of all requests together may take."""

from __future__ import annotations

import threading
from types import TracebackType

from openai_bls.core.errors import OverloadedError


class ImageBudget:
    """Bytes of images, from when they are fetched or decoded until their request has ended. For any thread.

    Args:
        limit: most bytes at a time.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self.held = 0
        """Bytes that are held now."""

    def lease(self) -> ImageLease:
        """A new part of the budget, for one request."""
        return ImageLease(self)

    def take(self, size: int) -> None:
        """Reserve `size` bytes.

        Raises:
            OverloadedError: there is no room just now, or never will be.
        """
        with self._lock:
            if self.held + size > self._limit:
                raise OverloadedError(
                    "The server has as many images in memory as it may (max_image_memory_bytes); try again later."
                )
            self.held += size

    def give_back(self, size: int) -> None:
        """Free `size` bytes."""
        with self._lock:
            self.held -= size


class ImageLease:
    """Part of the budget that one request holds. A context manager, which gives it back. For any thread."""

    def __init__(self, budget: ImageBudget) -> None:
        self._budget = budget
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
            self._budget.take(size)
            self._held += size

    def give_back(self, size: int) -> None:
        """Free `size` bytes of it; nothing once it has ended."""
        with self._lock:
            if not self._ended:
                self._budget.give_back(size)
                self._held -= size

    def end(self) -> None:
        """Free all of it; harmless if done again."""
        with self._lock:
            if not self._ended:
                self._ended = True
                self._budget.give_back(self._held)
                self._held = 0

    def __enter__(self) -> ImageLease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()
