"""Turns of batches: a bounded number of places, shared between the keys first and between the batches of a key next.

The next place goes to the key that has the fewest, for its weight. Of several such keys it goes to the one that had its
last turn the longest time ago, and in the same way to one of the key's batches. A key or batch without a place has
therefore its turn after at most one turn of each of the others that have none either. Nothing here waits or reads:
the runner asks who is next.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable


class _Member:
    """A key, or a batch of a key."""

    __slots__ = ("last_turn", "used")

    def __init__(self, last_turn: int) -> None:
        self.used = 0
        """Number of places that it has."""
        self.last_turn = last_turn
        """Number of its last turn, or of the turn before which it came."""


class _Key(_Member):
    """The batches of one key."""

    __slots__ = ("batches", "name", "waiting", "weight")

    def __init__(self, name: str, last_turn: int, weight: float) -> None:
        super().__init__(last_turn)
        self.name = name
        self.weight = weight
        self.batches: dict[str, _Member] = {}
        self.waiting: dict[str, None] = {}
        """Batches that may have a turn, in no order that matters."""

    @property
    def share(self) -> float:
        """Number of its places, for a weight of 1."""
        return self.used / self.weight


class Turns:
    """Places of one kind, such as requests in flight, and the batches that take turns at them.

    Args:
        most: number of places.
        weight: gives a key's share, above 0, when its first batch comes.
        bound: gives the number of places that a key may have now.
        once: whether a batch has at most one place.
    """

    def __init__(
        self,
        most: int,
        weight: Callable[[str], float] = lambda key: 1.0,
        bound: Callable[[str], float] = lambda key: math.inf,
        *,
        once: bool = False,
    ) -> None:
        self._most = most
        self._weight = weight
        self._bound = bound
        self._once = once
        self._keys: dict[str, _Key] = {}
        self._key_of: dict[str, str] = {}
        self._turn = 0
        self.used = 0
        """Number of places that are taken."""

    def __len__(self) -> int:
        """Number of batches that take turns, those that are paused included."""
        return len(self._key_of)

    def __contains__(self, batch_id: str) -> bool:
        return batch_id in self._key_of

    def key_of(self, batch_id: str) -> str:
        """Key of a batch that takes turns."""
        return self._key_of[batch_id]

    def used_by(self, key: str) -> int:
        """Number of places that a key has."""
        known = self._keys.get(key)
        return 0 if known is None else known.used

    def add(self, batch_id: str, key: str) -> None:
        """Let a batch take turns, after all that wait already. One that does is not moved, and not paused any more."""
        self._turn += 1
        known = self._keys.get(key)
        if known is None:
            known = self._keys[key] = _Key(key, self._turn, self._weight(key))
        if batch_id not in self._key_of:
            self._key_of[batch_id] = key
            known.batches[batch_id] = _Member(self._turn)
        if not (self._once and known.batches[batch_id].used):
            known.waiting[batch_id] = None

    def pause(self, batch_id: str) -> None:
        """Give a batch no turn until it is added again; it keeps its places."""
        self._keys[self._key_of[batch_id]].waiting.pop(batch_id, None)

    def remove(self, batch_id: str) -> None:
        """Forget a batch, if it is known, and free the places that it has."""
        key = self._key_of.pop(batch_id, None)
        if key is None:
            return
        known = self._keys[key]
        known.waiting.pop(batch_id, None)
        used = known.batches.pop(batch_id).used
        known.used -= used
        self.used -= used
        if not known.batches:
            del self._keys[key]

    def take(self) -> str | None:
        """The batch whose turn it is, which has one place more now; None if no place is free, or nothing waits."""
        key = self._next() if self.used < self._most else None
        if key is None:
            return None
        batch_id = min(key.waiting, key=lambda batch: (key.batches[batch].used, key.batches[batch].last_turn))
        self._turn += 1
        for member in (key, key.batches[batch_id]):
            member.used += 1
            member.last_turn = self._turn
        self.used += 1
        if self._once:
            del key.waiting[batch_id]
        return batch_id

    def give_back(self, batch_id: str) -> None:
        """Free one place of a batch. Where a batch has one place at most, it is added to have another turn."""
        key = self._keys[self._key_of[batch_id]]
        for member in (key, key.batches[batch_id]):
            member.used -= 1
        self.used -= 1

    def _next(self) -> _Key | None:
        """The key whose turn it is; None if nothing waits."""
        waiting = (key for key in self._keys.values() if key.waiting and key.used < self._bound(key.name))
        return min(waiting, key=lambda key: (key.share, key.last_turn), default=None)


class Rounds(Turns):
    """Turns of batches at being open, each for some requests while others wait to be.

    Args:
        most: number of batches that are open.
        requests: number of requests after which an open batch makes room for one that waits.
        weight: see `Turns`.
    """

    def __init__(self, most: int, requests: int, weight: Callable[[str], float] = lambda key: 1.0) -> None:
        super().__init__(most, weight, once=True)
        self._requests = requests
        self._begun: Counter[str] = Counter()
        """Number of requests of each open batch since it was opened."""

    def take(self) -> str | None:
        """See `Turns.take`."""
        batch_id = super().take()
        if batch_id is not None:
            self._begun[batch_id] = 0
        return batch_id

    def remove(self, batch_id: str) -> None:
        """See `Turns.remove`."""
        super().remove(batch_id)
        self._begun.pop(batch_id, None)

    def count(self, batch_id: str) -> None:
        """Count a request of an open batch."""
        self._begun[batch_id] += 1

    def is_due(self, batch_id: str) -> bool:
        """True if a batch has had its round."""
        return self._begun[batch_id] >= self._requests

    def leaver(self, is_idle: Callable[[str], bool]) -> str | None:
        """The open batch that is to be closed now, since another waits; None if there is none.

        A key without an open batch waits for nothing: one of the key with the most is closed. Any other batch waits
        until an open one has had its round.

        Args:
            is_idle: tells of an open batch whether none of its requests is in flight, so that it can be closed at once.
        """
        key = self._next()
        if key is None or self.used < self._most:
            return None
        fullest = max(self._keys.values(), key=lambda other: other.share)
        if not key.used and fullest.used > 1:
            leavers = [batch_id for batch_id, member in fullest.batches.items() if member.used]
        else:
            leavers = [batch_id for batch_id in self._begun if self.is_due(batch_id)]
        return max(leavers, key=lambda batch_id: (is_idle(batch_id), self._begun[batch_id]), default=None)
