"""Turns of requests at the event loop: one begins at a time, and the keys take turns."""

from __future__ import annotations

import asyncio
from collections import deque


class RequestTurns:
    """Queue of requests whose heads are accepted; each turn of the event loop begins one of them.

    Reading, checking and starting a request takes milliseconds of the event loop. Without turns, two hundred that come
    at once take each of these steps together, and a further request waits for all of them at each of its own steps.
    A request that nobody is ahead of does not wait. Belongs to the event loop's thread.
    """

    def __init__(self) -> None:
        # The first key is the next one.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._is_taken = False

    async def wait(self, key: str) -> None:
        """Wait for a turn.

        Args:
            key: name of the request's API key.
        """
        loop = asyncio.get_running_loop()
        if not self._is_taken:
            self._is_taken = True
            loop.call_soon(self._next)
            return
        turn = loop.create_future()
        self._waiting.setdefault(key, deque()).append(turn)
        await turn

    def _next(self) -> None:
        while self._waiting:
            key = next(iter(self._waiting))
            turns = self._waiting.pop(key)
            # One whose task has been cancelled takes no turn.
            while turns and (turn := turns.popleft()).done():
                pass
            if turns:
                self._waiting[key] = turns
            if not turn.done():
                turn.set_result(None)
                asyncio.get_running_loop().call_soon(self._next)
                return
        self._is_taken = False
