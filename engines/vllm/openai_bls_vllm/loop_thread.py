"""Thread that runs an event loop, and calls to it from other threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class OverError(Exception):
    """The loop's work is over: what it was asked will not be answered."""


class LoopThread:
    """An event loop on a separate thread.

    Args:
        name: name of the thread.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._name = name
        self._thread: threading.Thread | None = None
        self._over = concurrent.futures.Future[None]()

    @property
    def here(self) -> bool:
        """True on the loop's own thread."""
        return threading.current_thread() is self._thread

    def start(self, opening: Callable[[], Coroutine[Any, Any, _T]], closing: Callable[[_T], None]) -> _T:
        """Run the loop until `stop`.

        Args:
            opening: makes the coroutine that runs first, on the loop.
            closing: called on the loop's thread after `stop`, with what `opening` returned.

        Returns:
            What `opening` returned.

        Raises:
            Exception: that of `opening`.
        """
        ready: concurrent.futures.Future[_T] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, args=(opening, closing, ready), name=self._name, daemon=True)
        self._thread.start()
        try:
            return ready.result()
        except BaseException:
            self._thread.join()
            raise

    def call(self, function: Callable[[], None]) -> None:
        """Have the loop call a function soon; from any thread. Nothing happens once the loop has ended."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(function)

    def ask(self, call: Coroutine[Any, Any, _T]) -> _T:
        """Result of a coroutine on the loop, for any other thread.

        Raises:
            OverError: `settle` or `stop` was called before there was one.
            Exception: the coroutine's.
        """
        if self._over.done():
            call.close()
            raise OverError
        try:
            asked = asyncio.run_coroutine_threadsafe(call, self.loop)
        except RuntimeError:  # closed meanwhile
            call.close()
            raise OverError from None
        both: list[concurrent.futures.Future[Any]] = [asked, self._over]
        concurrent.futures.wait(both, return_when=concurrent.futures.FIRST_COMPLETED)
        if not asked.done():
            asked.cancel()
            raise OverError
        return asked.result()

    def settle(self) -> None:
        """Let no thread wait for an answer any more; on the loop's thread."""
        if not self._over.done():
            self._over.set_result(None)

    def stop(self) -> None:
        """End the loop; on the loop's thread."""
        self.loop.stop()

    def join(self, seconds: float) -> bool:
        """Wait for the thread's end; True if it has ended."""
        assert self._thread is not None
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(
        self,
        opening: Callable[[], Coroutine[Any, Any, _T]],
        closing: Callable[[_T], None],
        ready: concurrent.futures.Future[_T],
    ) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            opened = self.loop.run_until_complete(opening())
        except BaseException as error:
            self.loop.run_until_complete(_end_tasks())
            self.loop.close()
            ready.set_exception(error)
            return
        ready.set_result(opened)
        try:
            self.loop.run_forever()
        finally:
            self.settle()
            closing(opened)
            self.loop.run_until_complete(_end_tasks())
            self.loop.close()


async def _end_tasks() -> None:
    """Cancel what still runs on the loop, and let it see that."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
