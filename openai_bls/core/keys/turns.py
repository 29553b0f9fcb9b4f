"""Turns by key: what waits is served from key to key, so that no key's queue is another's wait."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Container
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, TypeVar

from openai_bls.core.errors import OverloadedError

T = TypeVar("T")


class KeyQueue(Generic[T]):
    """Items that wait, in the order of their coming within a key, and the keys in turn. Belongs to one thread."""

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()
        self._served: str | None = None

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def waiting(self, key: str) -> int:
        """Number of items of a key."""
        return len(self._queues.get(key, ()))

    def push(self, key: str, item: T) -> None:
        """Add an item."""
        self._queues.setdefault(key, deque()).append(item)

    def pop(self, skip: Container[str] = ()) -> T | None:
        """The next item of a key that is not in `skip`, which is removed; None if there is none."""
        order = iter([key for key in self._queues if key not in skip] if skip else self._queues)
        key = next(order, None)
        if key is None:
            return None
        if key == self._served:
            # Its queue was empty when it was served.
            key = next(order, key)
        queue = self._queues[key]
        item = queue.popleft()
        self._served = key
        # The others come first the next time.
        self._queues.move_to_end(key)
        if not queue:
            del self._queues[key]
        return item

    def discard(self, key: str, item: T) -> None:
        """Remove an item, if it is there."""
        queue = self._queues.get(key)
        if queue is not None:
            with contextlib.suppress(ValueError):
                queue.remove(item)
            if not queue:
                del self._queues[key]


class _Waiting:
    """Work that waits for its turn, and its future, until it begins or is cancelled."""

    def __init__(self, key: str, future: Future[Any], work: Callable[[], Any]) -> None:
        self.key = key
        self._parts: tuple[Future[Any], Callable[[], Any]] | None = (future, work)

    def taken(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        """The two, which are held no longer: a future keeps its callbacks after its end, and they have this object."""
        parts, self._parts = self._parts, None
        return parts


class FairExecutor:
    """Threads that do work for keys in turn. Any thread may use it.

    Args:
        threads: number of threads.
        name: first part of their names.
        max_waiting: most works of one key that wait; None is no limit.
        initializer: called on each thread when it begins.
        leaves_one: whether a key leaves one thread to others, where works take long. One thread is never left.
    """

    def __init__(
        self,
        threads: int,
        name: str,
        max_waiting: int | None = None,
        initializer: Callable[[], None] | None = None,
        leaves_one: Callable[[], bool] = lambda: False,
    ) -> None:
        self._threads = ThreadPoolExecutor(threads, name, initializer)
        self._max_waiting = max_waiting
        self._most_of_key = max(1, threads - 1)
        self._leaves_one = leaves_one
        self._lock = threading.Lock()
        self._queue: KeyQueue[_Waiting] = KeyQueue()
        self._running: Counter[str] = Counter()
        self._put_off = 0
        """Rounds that found only works of keys that have as many threads as they may."""

    def submit(self, key: str, work: Callable[[], T]) -> Future[T]:
        """Have `work` done when it is the key's turn. Cancelling the future works until then.

        Raises:
            OverloadedError: too much of the key waits already.
            RuntimeError: the executor has been closed.
        """
        future: Future[T] = Future()
        item = _Waiting(key, future, work)
        with self._lock:
            waiting = self._queue.waiting(key)
            if self._max_waiting is not None and waiting >= self._max_waiting:
                raise OverloadedError(f"{waiting} requests of this API key wait for their turn; try again later.")
            self._queue.push(key, item)
        try:
            # One round for each work: which one it does is seen when it begins.
            self._threads.submit(self._round)
        except RuntimeError:
            self._forget(key, item, future)
            raise
        future.add_done_callback(partial(self._forget, key, item))
        return future

    def close(self, *, wait: bool = False) -> None:
        """Cancel what waits; with `wait`, wait for what runs."""
        with self._lock:
            waiting = [self._queue.pop() for _ in range(len(self._queue))]
        for item in waiting:
            parts = None if item is None else item.taken()
            if parts is not None:
                parts[0].cancel()
        self._threads.shutdown(wait=wait, cancel_futures=True)

    def _forget(self, key: str, item: _Waiting, future: Future[Any]) -> None:
        if future.cancelled() or not future.done():
            with self._lock:
                self._queue.discard(key, item)
            item.taken()

    def _round(self) -> None:
        with self._lock:
            full = [key for key, count in self._running.items() if count >= self._most_of_key]
            item = self._queue.pop(full if full and self._leaves_one() else ())
            if item is None:
                # There is none where its work was cancelled.
                self._put_off += bool(len(self._queue))
                return
            self._running[item.key] += 1
        try:
            self._do(item)
        finally:
            with self._lock:
                self._running[item.key] -= 1
                if not self._running[item.key]:
                    del self._running[item.key]
                again, self._put_off = self._put_off, 0
            with contextlib.suppress(RuntimeError):
                # Closed meanwhile: what waited has been cancelled.
                for _ in range(again):
                    self._threads.submit(self._round)

    def _do(self, item: _Waiting) -> None:
        parts = item.taken()
        if parts is None:
            return
        future, work = parts
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except BaseException as error:
            future.set_exception(error)
            # The error's traceback holds this frame.
            future = parts = None  # type: ignore[assignment]
        else:
            future.set_result(result)


class FairLock:
    """Lock that the keys get in turn. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._taken = False
        self._queue: KeyQueue[asyncio.Future[None]] = KeyQueue()

    @contextlib.asynccontextmanager
    async def turn(self, key: str) -> AsyncIterator[None]:
        """The lock, from a turn of the key until the end of the block."""
        turn = asyncio.get_running_loop().create_future()
        self._queue.push(key, turn)
        if not self._taken:
            self._next()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._queue.discard(key, turn)
            else:
                # It had just been given.
                self._next()
            raise
        try:
            yield
        finally:
            self._next()

    def _next(self) -> None:
        turn = self._queue.pop()
        while turn is not None and turn.done():
            turn = self._queue.pop()
        self._taken = turn is not None
        if turn is not None:
            turn.set_result(None)
