"""Requests in flight of one open batch, and the reasons why it stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from openai_bls.api.batches.disk import to_its_end
from openai_bls.api.batches.open_batch import OpenBatch
from openai_bls.api.batches.window import Window


class Running:
    """State of a batch whose requests are being sent; belongs to the event loop.

    Args:
        opened: files of the batch.
        write_s: time between two writes of its progress, in seconds.
        retry_s: see `Window`.
        resume: called when more requests may begin than before.
    """

    def __init__(
        self, opened: OpenBatch, write_s: float, retry_s: tuple[float, float], resume: Callable[[Running], None]
    ) -> None:
        self.opened = opened
        self.batch = opened.batch
        self.tasks: set[asyncio.Task[None]] = set()
        """Tasks that answer a request each."""
        self.is_over = False
        """True if it is to end now: it is cancelled, or its time is over."""
        self.is_keyless = False
        """True if it is to rest now: its API key is missing."""
        self.is_exhausted = False
        """True if the file has no further requests, though it had when it was validated."""
        self.leaves = False
        """True if it gives its place to another batch once its requests have been answered."""
        self._write_s = write_s
        self._retry_s = retry_s
        self._window = Window(retry_s, lambda: resume(self))
        self._to_begin = opened.left
        """Number of requests that are still to be sent."""
        self._is_stopped = False
        self._changed = asyncio.Event()
        self._error: BaseException | None = None

    @property
    def may_begin(self) -> bool:
        """True if it has requests to send, and its window has room."""
        stops = self.is_over or self.is_keyless or self.leaves or self._is_stopped
        return self._to_begin > 0 and len(self.tasks) < self._window.most and not stops

    def begin(self, work: Coroutine[Any, Any, None], ended: Callable[[Running], None]) -> None:
        """Begin a request.

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

    def look(self, *, is_cancelled: bool, is_keyless: bool) -> None:
        """Let `over` look again whether it is."""
        if is_cancelled or time.time() >= self.batch.expires_at:
            self.is_over = True
        self.is_keyless = self.is_keyless or is_keyless
        self._changed.set()

    def leave(self) -> None:
        """Stop sending requests, so that another batch may have the place."""
        self.leaves = True
        self._changed.set()

    def exhausted(self) -> None:
        """Take note that the file has no further requests."""
        self.is_exhausted = True
        self._to_begin = 0

    def put_back(self, *, shrink: bool) -> None:
        """Take note, in a request's task, that it is to be sent again.

        Args:
            shrink: whether the batch goes on with no more requests than the others that are in flight now, for a while.
        """
        self._to_begin += 1
        if shrink:
            self._window.refused(len(self.tasks) - 1)

    async def over(self, is_draining: Callable[[], bool]) -> None:
        """Return when the batch stops: at once if it `is_over` or `is_keyless`, else once nothing of it is in flight.

        Args:
            is_draining: tells whether the server is going down.

        Raises:
            Exception: raised by one of its requests.
        """
        while not (self.is_over or self.is_keyless):
            if self._error is not None:
                raise self._error
            if not self.tasks and (self._to_begin <= 0 or self.leaves or is_draining()):
                return
            await self._changed.wait()
            self._changed.clear()
            await self.opened.write_progress(self._write_s)

    async def cancel(self) -> None:
        """Cancel the requests in flight; each has a result or none afterwards."""
        self._is_stopped = True
        self._window.close()
        for task in self.tasks:
            task.cancel()
        await to_its_end(asyncio.gather(*self.tasks, return_exceptions=True))
