"""Readiness of the server's parts: each is asked for an answer, at most once a second."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from openai_bls.transport.ipc.link import PartState

_TIMEOUT_S = 1.0
"""Seconds that a part has to answer."""
_FRESH_S = 1.0
"""Seconds for which an answer counts."""

_PROBLEMS: dict[PartState, str] = {
    "lost": "has died",
    "silent": "does not answer",
    "foreign": "is not connected: a process of another user is in its place; the server's log says which",
    "restarting": "has lost its engine's process, which is being started again",
    "failed": "has lost its engine's process, which is not started any more; the server's log says why",
}


class Part(Protocol):
    """Client of a model."""

    async def check(self, timeout_s: float) -> PartState:
        """Ask the model for an answer, which it has `timeout_s` seconds for."""


class Readiness:
    """States of all parts. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._parts: dict[str, Part] = {}
        self._checking: asyncio.Task[None] | None = None
        self._checked_at = float("-inf")
        self.states: dict[str, PartState] = {}
        """States by the name of the Triton model, as of the last check."""

    def add(self, name: str, part: Part) -> None:
        """Ask `part` too, which is the Triton model `name`."""
        self._parts[name] = part

    async def check(self, *, force: bool = False) -> None:
        """Bring `states` up to date; concurrent callers share one check.

        Args:
            force: though the last check is not a second old.
        """
        if not force and time.monotonic() - self._checked_at < _FRESH_S:
            return
        if self._checking is None:
            self._checking = asyncio.get_running_loop().create_task(self._check())
        await asyncio.shield(self._checking)

    async def watch(self) -> None:
        """Keep `states` up to date, for those who read them on other threads; until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(_FRESH_S)

    @property
    def problem(self) -> str | None:
        """A model that should answer and does not, as a sentence; None if there is none.

        One that was unloaded on purpose is no problem.
        """
        for name, state in self.states.items():
            if state in _PROBLEMS:
                return f"{name} {_PROBLEMS[state]}"
        return None

    async def _check(self) -> None:
        try:
            states = await asyncio.gather(*(part.check(_TIMEOUT_S) for part in self._parts.values()))
            self.states = dict(zip(self._parts, states, strict=True))
            self._checked_at = time.monotonic()
        finally:
            self._checking = None
