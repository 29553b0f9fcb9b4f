"""Command queue from any thread to an engine's thread, and the call of its listener."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from openai_bls.core.engine import PrefixCacheError, StepListener
from openai_bls.core.engine_types import GenerationRequest, TokenDelta

logger = logging.getLogger(__name__)

CommandT = TypeVar("CommandT")


def emit(on_step: StepListener, deltas: list[TokenDelta]) -> None:
    """Give the deltas of a step to the listener, if there are any; its failure is not the engine's."""
    if not deltas:
        return
    try:
        on_step(deltas)
    except Exception:
        logger.exception("the step listener raised")


def command_of(request: GenerationRequest, problem: str | None) -> GenerationRequest | TokenDelta:
    """The request itself; if there is a problem, its end with an error that is the client's."""
    return request if problem is None else TokenDelta(request.request_id, [], "error", error=problem, invalid=True)


def submit(
    put: Callable[[Any], bool], on_step: StepListener, request: GenerationRequest, problem: str | None = None
) -> None:
    """Put a request into an engine's queue; once that is closed, it ends with "cancelled".

    Args:
        put: `CommandQueue.put` of the engine.
        on_step: the engine's listener.
        request: the request.
        problem: why the engine refuses it, in which case its end is put there instead; None if it takes it.
    """
    if not put(command_of(request, problem)):
        emit(on_step, [TokenDelta(request.request_id, [], "cancelled")])


class CommandQueue(Generic[CommandT]):
    """Commands from any thread to the one thread that owns an engine's state.

    All of an engine's bookkeeping happens on its own thread, in the order in which commands came in. That leaves no
    race between a cancellation and an end, and lets the listener be called without a lock held.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        """Args: wake: called after each new command; makes the engine's thread call `drain` soon."""
        self._commands: deque[CommandT] = deque()
        self._lock = threading.Lock()
        self._wake = wake
        self._closed = False

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._closed

    def put(self, *commands: CommandT) -> bool:
        """Add commands, which are drained together; False once closed, and then they will not be seen."""
        with self._lock:
            if self._closed:
                return False
            self._commands.extend(commands)
        self._wake()
        return True

    def drain(self) -> list[CommandT]:
        """Take out all commands, oldest first."""
        if not self._commands:
            return []
        with self._lock:
            commands = list(self._commands)
            self._commands.clear()
        return commands

    def close(self) -> bool:
        """Take no more commands; True for the first call. Those inside can still be drained."""
        with self._lock:
            first = not self._closed
            self._closed = True
        self._wake()
        return first


def await_reset(put: Callable[[Future[bool]], bool]) -> None:
    """Have an engine's thread forget the cached prompts, between two steps.

    Args:
        put: `CommandQueue.put` of the engine, which sets the future: to False if some of the cache is held.

    Raises:
        PrefixCacheError: the engine is being unloaded, or sequences hold some of the cache.
    """
    reset: Future[bool] = Future()
    if not put(reset):
        raise PrefixCacheError("the engine is being unloaded", busy=True)
    if not reset.result():
        raise PrefixCacheError(
            "sequences that run hold some of the prefix cache; the rest is reset: ask again when they have ended",
            busy=True,
        )
