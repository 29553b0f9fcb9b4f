"""Room of one store, shared by API keys.

A key may fill what the others leave. Where there is no room left, the key that has most loses its oldest entry. So a
key that has at most its share, the capacity divided by the number of keys that have something, loses nothing to others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress


def room_beside(capacity: int, others: Iterable[int]) -> int:
    """Most that one key can have: what is left of the capacity when no other key has more than it.

    Args:
        capacity: capacity of all keys together.
        others: amount of each other key.
    """
    left = capacity
    ordered = sorted(others)
    for at, used in enumerate(ordered):
        share = left // (len(ordered) - at + 1)
        if used > share:
            return share
        left -= used
    return left


class _Holding:
    """Holdings of one key."""

    def __init__(self) -> None:
        self.order: OrderedDict[str, _Entry] = OrderedDict()
        """Entries that may go, the least recently used first."""
        self.count = 0
        """Number of entries, those that may not go included."""
        self.bytes = 0

    @property
    def last_use(self) -> int:
        """Time of the last use of the oldest entry."""
        return next(iter(self.order.values())).used


class _Entry:
    def __init__(self, key: str, holding: _Holding, used: int) -> None:
        self.key = key
        self.holding = holding
        self.used = used


class Shares:
    """Entries of all keys, in the order of their use, and their bytes. Belongs to one thread; others may call `use`.

    Args:
        max_entries: most entries of all keys.
        max_bytes: most bytes of all keys.
    """

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: dict[str, _Entry] = {}
        self._holdings: dict[str, _Holding] = {}
        self._uses = 0
        self.bytes = 0
        """Bytes of all keys."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, key: str, name: str, *, pinned: bool = False) -> None:
        """Add an entry, as the last that was used.

        Args:
            key: name of the API key that has it.
            name: name of the entry, which no other has.
            pinned: True if it may not go to make room.
        """
        holding = self._holdings.setdefault(key, _Holding())
        entry = self._entries[name] = _Entry(key, holding, self._tick())
        holding.count += 1
        if not pinned:
            holding.order[name] = entry

    def charge(self, key: str, size: int) -> None:
        """Count `size` bytes to a key; those of a negative number are given back."""
        holding = self._holdings.setdefault(key, _Holding())
        holding.bytes += size
        self.bytes += size
        self._drop_empty(key, holding)

    def use(self, name: str) -> None:
        """Note that an entry is used; nothing happens if it is gone."""
        entry = self._entries.get(name)
        if entry is not None:
            entry.used = self._tick()
            # The owner's thread may just have removed it, and a pinned one has no place.
            with suppress(KeyError):
                entry.holding.order.move_to_end(name)

    def remove(self, name: str) -> None:
        """Remove an entry; its bytes are given back by `charge`."""
        entry = self._entries.pop(name)
        entry.holding.order.pop(name, None)
        entry.holding.count -= 1
        self._drop_empty(entry.key, entry.holding)

    def owner(self, name: str) -> str:
        """Name of the API key of an entry."""
        return self._entries[name].key

    def used(self, key: str) -> int:
        """Bytes that a key has."""
        holding = self._holdings.get(key)
        return 0 if holding is None else holding.bytes

    def count(self, key: str) -> int:
        """Number of entries that a key has."""
        holding = self._holdings.get(key)
        return 0 if holding is None else holding.count

    def room(self, key: str) -> int:
        """Most bytes that one key can have now: an entry of no more, the last that was used, does not go."""
        return room_beside(self._max_bytes, (one.bytes for name, one in self._holdings.items() if name != key))

    def room_for_entries(self, key: str) -> int:
        """Most entries that one key can have now."""
        return room_beside(self._max_entries, (one.count for name, one in self._holdings.items() if name != key))

    @property
    def is_over(self) -> bool:
        """True if there is more than there is room for."""
        return len(self._entries) > self._max_entries or self.bytes > self._max_bytes

    def excess(self) -> str | None:
        """Name of the entry that goes next; None if there is room, or nothing that may go."""
        for over, capacity, bytes_count in (
            (len(self._entries) > self._max_entries, self._max_entries, False),
            (self.bytes > self._max_bytes, self._max_bytes, True),
        ):
            if over:
                return self._oldest_of_fullest(capacity, bytes_count=bytes_count)
        return None

    def _oldest_of_fullest(self, capacity: int, *, bytes_count: bool) -> str | None:
        fullest: tuple[int, int] | None = None
        name = None
        for holding in self._holdings.values():
            used = holding.bytes if bytes_count else holding.count
            if not holding.order or used * len(self._holdings) <= capacity:
                continue
            # Of two that have as much, the one whose oldest entry has not been used for longer.
            rank = (used, -holding.last_use)
            if fullest is None or rank > fullest:
                fullest, name = rank, next(iter(holding.order))
        return name

    def _tick(self) -> int:
        self._uses += 1
        return self._uses

    def _drop_empty(self, key: str, holding: _Holding) -> None:
        if not holding.count and not holding.bytes:
            self._holdings.pop(key, None)
