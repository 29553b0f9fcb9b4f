"""Shares of a pool: places that API keys have at a time, at all hosts and at each one, and turns at them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator
from typing import NamedTuple, TypeVar

from openai_bls.core.errors import OverloadedError

T = TypeVar("T")


class Limits(NamedTuple):
    """Most users of a pool at a time."""

    total: int
    per_key: int
    """Users of one key, at all hosts."""
    per_host: int
    """Users of all keys, at one host."""
    per_key_and_host: int
    waiting_per_key: int
    waiting_per_key_and_host: int


class Shares:
    """Pool that no key and no host fills alone. Who waits gets a place in turn by key, then by host.

    Belongs to the event loop's thread.

    Args:
        limits: sizes of the pool.
        subject: plural noun for the users, in messages to the client.
    """

    def __init__(self, limits: Limits, subject: str) -> None:
        self._limits = limits
        self._subject = subject
        self.running = 0
        """Places that are taken."""
        self._of_key: Counter[str] = Counter()
        self._of_host: Counter[str] = Counter()
        self._of_both: Counter[tuple[str, str]] = Counter()
        self._waiting: dict[str, dict[str, deque[asyncio.Future[None]]]] = {}

    @property
    def waiting(self) -> int:
        """Number of those that wait for a place."""
        return sum(map(self._waiting_of, self._waiting))

    @contextlib.asynccontextmanager
    async def place(self, key: str, host: str) -> AsyncIterator[None]:
        """A place, from when there is one until the end of the block.

        Raises:
            OverloadedError: too many of the key wait already.
        """
        await self.enter(key, host)
        try:
            yield
        finally:
            self.leave(key, host)

    async def enter(self, key: str, host: str) -> None:
        """Take a place, which `leave` gives back.

        Raises:
            OverloadedError: too many of the key wait already.
        """
        if self._has_room(key, host):
            # Nobody waits who could have it.
            self._count(key, host, 1)
            return
        limits, of_host = self._limits, self._waiting.get(key, {}).get(host, ())
        for waiting, most, where in (
            (len(of_host), limits.waiting_per_key_and_host, "of this host "),
            (self._waiting_of(key), limits.waiting_per_key, ""),
        ):
            if waiting >= most:
                raise OverloadedError(
                    f"{waiting} {self._subject} {where}wait for their turn, the most of one API key; try again later."
                )
        queue = self._waiting.setdefault(key, {}).setdefault(host, deque())
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                queue.remove(turn)
                self._forget_empty(key, host)
            else:
                # It had just been given.
                self.leave(key, host)
            raise

    def leave(self, key: str, host: str) -> None:
        """Give a place back, to who is next."""
        self._count(key, host, -1)
        if self.running >= self._limits.total:
            return
        for next_key in list(self._waiting):
            if self._of_key[next_key] < self._limits.per_key and self._serve(next_key):
                return

    def _serve(self, key: str) -> bool:
        """Give a place to one that waits for the key, if any can have it."""
        hosts = self._waiting[key]
        for host, queue in hosts.items():
            turn = next((turn for turn in queue if not turn.done()), None)
            if turn is None or not self._has_room(key, host):
                continue
            queue.remove(turn)
            self._count(key, host, 1)
            turn.set_result(None)
            # The others come first the next time.
            hosts[host] = hosts.pop(host)
            self._waiting[key] = self._waiting.pop(key)
            self._forget_empty(key, host)
            return True
        return False

    def _has_room(self, key: str, host: str) -> bool:
        limits = self._limits
        return (
            self.running < limits.total
            and self._of_key[key] < limits.per_key
            and self._of_host[host] < limits.per_host
            and self._of_both[key, host] < limits.per_key_and_host
        )

    def _count(self, key: str, host: str, change: int) -> None:
        self.running += change
        _add(self._of_key, key, change)
        _add(self._of_host, host, change)
        _add(self._of_both, (key, host), change)

    def _waiting_of(self, key: str) -> int:
        return sum(map(len, self._waiting.get(key, {}).values()))

    def _forget_empty(self, key: str, host: str) -> None:
        hosts = self._waiting[key]
        if not hosts[host]:
            del hosts[host]
        if not hosts:
            del self._waiting[key]


def _add(counts: Counter[T], name: T, change: int) -> None:
    counts[name] += change
    if not counts[name]:
        # Counters keep zeros.
        del counts[name]
