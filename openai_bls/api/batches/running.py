"""Requests in flight of one open batch, and the reasons why it stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from openai_bls.api.batches.open_batch import OpenBatch, to_its_end


class Running:
    """State of a batch whose requests are being sent; belongs to the event loop.

    Args:
        opened: files of the batch.
        write_s: time between two writes of its progress, in seconds.
        retry_s: time until it sends again when the server had no room, in seconds: at first, and at most.
    """

    def __init__(self, opened: OpenBatch, write_s: float, retry_s: tuple[float, float]) -> None:
        self.opened = opened
        self.batch = opened.batch
        self.tasks: set[asyncio.Task[None]] = set()
        """Tasks that answer a request each."""
        self.is_over = False
        """True if nothing more is to be sent: it is cancelled, its time is over, or its lines have come to an end."""
        self.leaves = False
        """True if it gives its place to another batch once its requests have been answered."""
        self._write_s = write_s
        self._retry_s = retry_s
        self._wait_s = 0.0
        """Time of the wait after the last refusal, in seconds; 0 since a request was answered."""
        self._waiting: asyncio.TimerHandle | None = None
        self._to_begin = opened.left
        """Number of requests that are still to be sent."""
        self._changed = asyncio.Event()
        self._error: BaseException | None = None

    def begin(self, work: Coroutine[Any, Any, None], ended: Callable[[Running], None]) -> bool:
        """Begin a request; True if more are left to be sent.

        Args:
            work: answers the request.
            ended: called when `work` has ended, in whichever way.
        """

        def end(task: asyncio.Task[None]) -> None:
            self.tasks.discard(task)
            if not task.cancelled() and task.exception() is not None:
                self._error = task.exception()
            self._changed.set()
            ended(self)

        self._to_begin -= 1
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(end)
        return self._to_begin > 0

    def look(self, *, is_cancelled: bool) -> None:
        """Let `over` look again whether it is."""
        if is_cancelled or time.time() >= self.batch.expires_at:
            self.is_over = True
        self._changed.set()

    def leave(self) -> None:
        """Stop sending requests, so that another batch may have the place."""
        self.leaves = True
        self._changed.set()

    def exhausted(self) -> None:
        """Take note that the file has no further requests, though it had when it was validated."""
        self.is_over = True

    def answered(self) -> None:
        """Take note that a request has been answered, so that the server has room."""
        self._wait_s = 0.0

    def refused(self, resume: Callable[[], None]) -> None:
        """Take note that a request is to be sent again, and wait for a while before `resume` lets the batch go on."""
        self._to_begin += 1
        if self._waiting is None:
            first, most = self._retry_s
            self._wait_s = min(2 * self._wait_s, most) or first
            self._waiting = asyncio.get_running_loop().call_later(self._wait_s, self._resume, resume)

    def _resume(self, resume: Callable[[], None]) -> None:
        self._waiting = None
        if not (self.is_over or self.leaves):
            resume()

    async def over(self, is_draining: Callable[[], bool]) -> None:
        """Return when the batch stops: at once if it `is_over`, else once none of its requests is in flight.

        Args:
            is_draining: tells whether the server is going down.

        Raises:
            Exception: raised by one of its requests.
        """
        while not self.is_over:
            if self._error is not None:
                raise self._error
            if not self.tasks and (self._to_begin <= 0 or self.leaves or is_draining()):
                return
            await self._changed.wait()
            self._changed.clear()
            await self.opened.write_progress(self._write_s)

    async def cancel(self) -> None:
        """Cancel the requests in flight; each has a result or none afterwards."""
        if self._waiting is not None:
            self._waiting.cancel()
        for task in self.tasks:
            task.cancel()
        await to_its_end(asyncio.gather(*self.tasks, return_exceptions=True))
