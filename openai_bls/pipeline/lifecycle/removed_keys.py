"""End of what runs for an API key that was taken out."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from openai_bls.core.errors import ApiError, AuthenticationError
from openai_bls.core.keys.api_keys import ApiKeys
from openai_bls.core.keys.watched_files import CHECK_INTERVAL_S
from openai_bls.pipeline.lifecycle.life import Running, Work

logger = logging.getLogger(__name__)


class _TaskWork:
    """Work that a task does, until it leaves a block.

    Args:
        key: name of the API key.
        task: task that does it.
    """

    def __init__(self, key: str, task: asyncio.Task[Any]) -> None:
        self.key = key
        self.error: ApiError | None = None
        self._task = task

    @property
    def work(self) -> Work:
        """Work that can be ended: this one."""
        return self

    def fail(self, error: ApiError) -> None:
        """Cancel the task's work; the block raises `error`."""
        if self.error is None:
            self.error = error
            self._task.cancel()

    def is_cancelled(self) -> bool:
        """True if the task was cancelled by another, too; a cancellation that is ours alone is taken back."""
        if self.error is None:
            return True
        # Before 3.11 a task does not tell how often it was cancelled.
        return sys.version_info >= (3, 11) and self._task.uncancel() > 0


class RemovedKeys:
    """Requests in progress, which end with an error once no key has the name of theirs. Belongs to the event loop.

    Args:
        api_keys: keys that requests must have.
    """

    def __init__(self, api_keys: ApiKeys) -> None:
        self._api_keys = api_keys
        self.lives: set[Running] = set()
        """Requests in progress, and tasks that work for one."""

    @contextmanager
    def while_key_lasts(self, key: str) -> Iterator[None]:
        """A block in which the current task works for a key: it is cancelled, and raises, once the key is taken out.

        Args:
            key: name of the API key.

        Raises:
            AuthenticationError: the key was taken out.
        """
        task = asyncio.current_task()
        assert task is not None
        work = _TaskWork(key, task)
        self.lives.add(work)
        try:
            yield
        except asyncio.CancelledError:
            if work.is_cancelled() or work.error is None:
                raise
            raise work.error from None
        finally:
            self.lives.discard(work)

    async def watch(self) -> None:
        """Look for keys that were taken out, until cancelled."""
        while self._api_keys.required:
            await asyncio.sleep(CHECK_INTERVAL_S)
            try:
                self.look()
            except Exception:
                logger.exception("the requests of removed keys could not be ended")

    def look(self) -> None:
        """End the requests whose key has been missing since the look before this one.

        A request that is still being prepared has no work to end: a later look does.
        """
        # Without a name is the key that cannot change while the server runs, or none, where none is asked for.
        for key in {life.key for life in self.lives} - {""}:
            if not self._api_keys.missing_s(key):
                continue
            ended = [life.work for life in self.lives if life.key == key and life.work is not None]
            for work in ended:
                work.fail(AuthenticationError("The API key of this request was taken out."))
            if ended:
                logger.info("%d requests ended: the API key %s was taken out", len(ended), key)
