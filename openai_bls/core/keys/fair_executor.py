"""Threads whose work is taken in turn by API key, so that no key waits for all that another one has asked for."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

Result = TypeVar("Result")


class _Work(NamedTuple):
    future: Future[Any]
    call: Callable[[], Any]


class FairExecutor:
    """Executor with a queue for each API key.

    The next turn is that of the key with least at work; of several, that of the one whose last turn is longest ago. So
    a key that had nothing here waits for one unit of work at most, whatever the others have waiting.

    Args:
        threads: number of threads, which start when they are needed.
        name: prefix of their names.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, name)
        self._lock = threading.Lock()
        self._queues: dict[str, deque[_Work]] = {}
        """Work that waits, by key; no queue is empty."""
        self._running: Counter[str] = Counter()
        self._turns: dict[str, int] = {}
        """Number of the last turn of each key that has something here."""
        self._turn = 0

    def submit(self, key: str, call: Callable[[], Result]) -> Future[Result]:
        """Have `call` done in one of the key's turns; what is cancelled before it begins is left out.

        Args:
            key: name of the API key.
            call: the work.
        """
        future: Future[Result] = Future()
        with self._lock:
            self._queues.setdefault(key, deque()).append(_Work(future, call))
        self._pool.submit(self._run_next)
        return future

    def shutdown(self) -> None:
        """Start no more; what waits is cancelled, what runs ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            waiting = [work.future for queue in self._queues.values() for work in queue]
            self._queues.clear()
        for future in waiting:
            future.cancel()

    def _run_next(self) -> None:
        with self._lock:
            found = self._take()
        if found is None:
            return
        key, work = found
        try:
            work.future.set_result(work.call())
        except BaseException as error:
            work.future.set_exception(error)
        finally:
            with self._lock:
                self._running[key] -= 1
                self._forget_idle(key)

    def _take(self) -> tuple[str, _Work] | None:
        """The work whose turn it is; None if all has been cancelled."""
        while self._queues:
            key = min(self._queues, key=lambda one: (self._running[one], self._turns.get(one, 0)))
            queue = self._queues[key]
            work = queue.popleft()
            if not queue:
                del self._queues[key]
            if work.future.set_running_or_notify_cancel():
                self._running[key] += 1
                self._turn += 1
                self._turns[key] = self._turn
                return key, work
            self._forget_idle(key)
        return None

    def _forget_idle(self, key: str) -> None:
        if not self._running[key]:
            del self._running[key]
            if key not in self._queues:
                self._turns.pop(key, None)
