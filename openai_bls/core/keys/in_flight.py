"""Room of what is in flight, shared by API keys: nothing of it can go to make room, so that room is left for others.

A key takes no more than it leaves free. So however much one key wants, as much as it has is free for others, and each
of these finds room for half of what is free.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class InFlight:
    """Bytes, or requests, in flight of all keys. For any thread.

    Args:
        limit: most of all keys.
        several: tells whether there are several keys; else one takes all.
    """

    def __init__(self, limit: int, several: Callable[[], bool] = lambda: False) -> None:
        self._limit = limit
        self._several = several
        self._lock = threading.Lock()
        self._of_key: dict[str, int] = {}
        self.held = 0
        """That of all keys."""

    def take(self, key: str, size: int, *, free: bool = False) -> bool:
        """Take `size`; False if there is no room for the key just now.

        Args:
            key: name of the API key.
            size: number of bytes or requests.
            free: take them whether there is room or not.
        """
        with self._lock:
            own = self._of_key.get(key, 0) + size
            if not free and not self._has_room(own, size):
                return False
            self.held += size
            if own:
                self._of_key[key] = own
            return True

    def give_back(self, key: str, size: int) -> None:
        """Free what was taken."""
        with self._lock:
            self.held -= size
            own = self._of_key.pop(key, 0) - size
            if own:
                self._of_key[key] = own

    def has_room(self, key: str, size: int) -> bool:
        """Whether a key can take `size` now."""
        with self._lock:
            return self._has_room(self._of_key.get(key, 0) + size, size)

    def _has_room(self, own: int, size: int) -> bool:
        left = self._limit - self.held - size
        # What is more than half can be had while nothing else is in flight.
        return left >= 0 and (own <= left or not self.held or not self._several())
