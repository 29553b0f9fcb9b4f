"""Requests that wait for grammars."""

from __future__ import annotations

import threading
from collections import Counter

from openai_bls.engines.grammars.cache import Owned


class Waiters:
    """Requests that wait for grammars. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: dict[str, Owned] = {}
        """Grammars by the key of the request."""
        self._waiting: Counter[Owned] = Counter()

    def add(self, key: str, owned: Owned) -> None:
        """Note that a request waits for a grammar."""
        with self._lock:
            self._wanted[key] = owned
            self._waiting[owned] += 1

    def remove(self, key: str) -> Owned | None:
        """Note that a request does not wait any more.

        Returns:
            Its grammar, if it did wait and no other request waits for the same.
        """
        with self._lock:
            owned = self._wanted.pop(key, None)
            if owned is None:
                return None
            self._waiting[owned] -= 1
            if self._waiting[owned]:
                return None
            del self._waiting[owned]
            return owned
