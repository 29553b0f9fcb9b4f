"""Fair queue: deficit round robin over the tokens of what waits, a queue for each API key.

The variant of RFC 8290 (FQ-CoDel without CoDel): a key that begins to wait is served before those that have waited for
a while, for one quantum, so that a client with few requests is not behind a whole round of others'. A key may overdraw
its deficit by one request, and pays for it in later rounds. Within a key's queue the items of the lowest `priority`
come first, in the order in which they came; a priority takes nothing from other keys. An item may be taken in parts, by
its sequences, each of which costs its part of the tokens: what is left of it keeps its place within its key.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from typing import NamedTuple

from openai_bls.pipeline.admission.ticket import Ticket

QUANTUM_TOKENS = 256
"""Tokens that a key of weight 1 may have in a round: fewer than most requests, so that keys take turns."""


class Part(NamedTuple):
    """Part of an item that is taken at once: all of it, or some of its sequences."""

    ticket: Ticket
    sequences: int
    """Number of its sequences that are taken."""
    cost_tokens: int


class KeyQueue:
    """Queue of one key: the items of each priority in order."""

    __slots__ = ("_levels", "cost_tokens", "count", "deficit", "prompt_tokens", "weight")

    def __init__(self) -> None:
        self._levels: dict[int, OrderedDict[Ticket, None]] = {}
        """Items that wait, by their priority; no level is empty."""
        self.count = 0
        """Items that wait."""
        self.prompt_tokens = 0
        """Prompt tokens of all items."""
        self.cost_tokens = 0
        """Cost in tokens of all items, without the parts that have been taken."""
        self.deficit = 0.0
        """Tokens that it may still have in this round; below 0 it has had too many."""
        self.weight = 1.0

    def __contains__(self, item: Ticket) -> bool:
        return item in self._levels.get(item.priority, ())

    def first(self) -> Ticket:
        """The next item of a queue that is not empty."""
        return next(iter(self._levels[min(self._levels)]))

    def cost_ahead(self, priority: int) -> int:
        """Cost in tokens of the items that come before a new one of `priority`."""
        if len(self._levels) == 1:
            # Nearly always: all have the same priority.
            return self.cost_tokens if next(iter(self._levels)) <= priority else 0
        return sum(item.cost_left for level, items in self._levels.items() if level <= priority for item in items)

    def add(self, item: Ticket) -> None:
        """Put an item behind those of its priority."""
        self._levels.setdefault(item.priority, OrderedDict())[item] = None

    def discard(self, item: Ticket) -> None:
        """Take out an item that waits."""
        level = self._levels[item.priority]
        del level[item]
        if not level:
            del self._levels[item.priority]


class FairQueue:
    """Items of several keys in the order in which they are due.

    Args:
        weight: gives a key's share, above 0, when the key begins to wait.
    """

    def __init__(self, weight: Callable[[str], float] = lambda key: 1.0) -> None:
        self._weight = weight
        self._queues: dict[str, KeyQueue] = {}
        """Queues of the keys that are in one of the rounds."""
        self._new: deque[str] = deque()
        self._old: deque[str] = deque()
        self.count = 0
        """Items that wait."""
        self.prompt_tokens = 0
        self.cost_tokens = 0

    def __len__(self) -> int:
        return self.count

    def of(self, key: str) -> KeyQueue | None:
        """Queue of a key; None if there is none."""
        return self._queues.get(key)

    @property
    def weights(self) -> float:
        """Sum of the weights of all keys that wait."""
        return sum(queue.weight for queue in self._queues.values() if queue.count)

    def push(self, item: Ticket) -> None:
        """Put an item into its key's queue, behind those of the same priority."""
        queue = self._queues.get(item.key)
        if queue is None:
            queue = self._queues[item.key] = KeyQueue()
            queue.weight = self._weight(item.key)
            queue.deficit = QUANTUM_TOKENS * queue.weight
            self._new.append(item.key)
        queue.add(item)
        self._count(queue, item, 1)

    def remove(self, item: Ticket) -> bool:
        """Take an item out of the queue; False if it does not wait."""
        queue = self._queues.get(item.key)
        if queue is None or item not in queue:
            return False
        queue.discard(item)
        self._count(queue, item, -1)
        return True

    def charge(self, key: str, tokens: float) -> None:
        """Correct what a key has had by `tokens`, which may be below 0, as long as it is in the rounds."""
        queue = self._queues.get(key)
        if queue is not None:
            queue.deficit -= tokens

    def pop(self, most: float = math.inf, skip: Collection[str] = ()) -> Part | None:
        """What is next: all that is left of an item, or its next `most` sequences; None if nothing waits.

        Args:
            most: sequences of an item that are taken at the most.
            skip: keys whose turns are left out.
        """
        if self.count == sum(self._queues[key].count for key in skip):
            return None
        visited = 0
        while True:
            keys = self._new or self._old
            key = keys[0]
            queue = self._queues[key]
            if not queue.count:
                keys.popleft()
                if keys is self._new and self._old:
                    # Else a key that comes and goes would always be a new one.
                    self._old.append(key)
                else:
                    del self._queues[key]
                continue
            if queue.deficit > 0 and key not in skip:
                return self._take(queue, most)
            keys.popleft()
            self._old.append(key)
            if key in skip:
                continue
            queue.deficit += QUANTUM_TOKENS * queue.weight
            visited += 1
            if visited > len(self._queues):
                self._skip_rounds(skip)
                visited = 0

    def pop_of(self, allowed: Callable[[str], bool], most: float = math.inf) -> Part | None:
        """The same of the first waiting key that is allowed, out of its turn; None if there is none.

        Args:
            allowed: tells of a key's name whether its items may be taken.
            most: sequences of an item that are taken at the most.
        """
        for key in (*self._new, *self._old):
            queue = self._queues[key]
            if queue.count and allowed(key):
                return self._take(queue, most)
        return None

    def _take(self, queue: KeyQueue, most: float) -> Part:
        item = queue.first()
        if item.left <= most:
            count, cost = item.left, item.cost_left
            self.remove(item)
        else:
            count = int(most)
            cost = item.cost_left * count // item.left
            queue.cost_tokens -= cost
            self.cost_tokens -= cost
        item.left -= count
        item.cost_left -= cost
        queue.deficit -= cost
        return Part(item, count, cost)

    def _skip_rounds(self, skip: Collection[str]) -> None:
        """Give every key but those in `skip` at once what the rounds bring in which none is served."""
        waiting = [queue for key, queue in self._queues.items() if queue.count and key not in skip]
        rounds = min(-queue.deficit / (QUANTUM_TOKENS * queue.weight) for queue in waiting)
        if rounds > 1:
            for queue in waiting:
                queue.deficit += int(rounds) * QUANTUM_TOKENS * queue.weight

    def _count(self, queue: KeyQueue, item: Ticket, sign: int) -> None:
        self.count += sign
        if not self.count:
            # What is left of the rounds is of no use to anybody: every key starts from zero.
            self._queues.clear()
            self._new.clear()
            self._old.clear()
        queue.count += sign
        for counted in (queue, self):
            counted.prompt_tokens += sign * item.prompt_tokens
            counted.cost_tokens += sign * item.cost_left
