"""Work on other threads than the engine's, by the key of the request that awaits it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Generic, TypeVar

Result = TypeVar("Result")


class KeyedFutures(Generic[Result]):
    """Futures of requests, whose results are told once, and not any more once they are forgotten.

    Args:
        on_result: called from a thread of an executor; not after `cancel` or `close`. It must not call back.
    """

    def __init__(self, on_result: Callable[[Result], object]) -> None:
        self._on_result = on_result
        self._lock = threading.Lock()
        self._futures: dict[str, Future[None]] = {}
        """Futures that are awaited, by key."""

    def start(self, submit: Callable[[Callable[[], None]], Future[None]], key: str, work: Callable[[], Result]) -> None:
        """Have `work` done, which raises nothing; not after `close`.

        Args:
            submit: submits to an executor.
            key: key of the request.
            work: the work.
        """
        with self._lock:
            self._futures[key] = submit(partial(self._run, key, work))

    def cancel(self, key: str) -> None:
        """Forget a request: what has begun ends by itself, unheard. One that is not known is passed over."""
        with self._lock:
            future = self._futures.pop(key, None)
        if future is not None:
            future.cancel()

    def close(self) -> None:
        """Tell of nothing more; what runs ends by itself, unheard."""
        with self._lock:
            self._futures.clear()

    def _run(self, key: str, work: Callable[[], Result]) -> None:
        result = work()
        # With the lock, so that nothing is reported once `cancel` or `close` has returned.
        with self._lock:
            if self._futures.pop(key, None) is not None:
                self._on_result(result)
