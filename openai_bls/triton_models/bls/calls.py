"""Calls of other models by BLS: plain one-response calls on a few threads, and the shared memory of their tensors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np

from openai_bls.core.keys.in_flight import InFlight
from openai_bls.core.processes.private_folder import SHARED_MEMORY
from openai_bls.transport.model_calls import (
    Array,
    Arrays,
    InputTooLargeError,
    ModelCallError,
    ModelTimeoutError,
    ModelUnavailableError,
    NoStreamsError,
)

logger = logging.getLogger(__name__)

BlockingCall = Callable[[str, Mapping[str, Array], Sequence[str]], Arrays]
"""`pb_utils.call_model`: model, inputs by name, names of the outputs wanted. Blocks until the model has answered."""

StreamingCall = Callable[..., AsyncGenerator[Arrays, None]]
"""`ModelCalls.stream` without a key."""

# A running call holds one of the threads that the Python backend has per instance (`thread-pool-size`: 256 by our
# launcher, 32 by a bare tritonserver) until its model answers, and so does a response on its way out on Triton's
# endpoints. Nothing can end such a call. So no model may have all threads, nor calls all of the backend's.
MAX_CALLS = 24
"""Calls that run at a time."""
MAX_CALLS_PER_MODEL = 8
"""Calls of one model that run at a time; the next wait for their turn."""
SMALL_BYTES = 65536
"""Bytes of inputs that need not wait for room: a chat model that holds much of it may call another one."""


def shared_memory_room(instances: int, folder: Path = SHARED_MEMORY) -> int:
    """Most bytes of the inputs of one instance's calls at a time, by what is free in shared memory now.

    An input is there twice: in the pool of this process, and in that of the called model. A third is left for answers,
    and for what clients send to Triton's ports.

    Args:
        instances: number of instances that make calls.
        folder: mount of the shared memory.
    """
    usage = os.statvfs(folder)
    return usage.f_bavail * usage.f_frsize // (3 * instances)


class _Call:
    """A call, waiting or running."""

    def __init__(self, model: str, inputs: Mapping[str, Array], outputs: Sequence[str], key: str, size: int) -> None:
        self.model = model
        self.inputs = inputs
        self.outputs = outputs
        self.key = key
        self.size = size
        """Bytes of the inputs."""
        self.answer: asyncio.Future[Arrays] = asyncio.get_running_loop().create_future()
        """Done once nobody waits any more."""
        self.running = False
        self.overdue = False
        """Running after its deadline."""


class _Calls:
    """The calls of one model."""

    def __init__(self) -> None:
        self.waiting: deque[_Call] = deque()
        self.running: set[_Call] = set()

    @property
    def stuck(self) -> bool:
        """True if every call that may run is overdue."""
        return len(self.running) == MAX_CALLS_PER_MODEL and all(call.overdue for call in self.running)


class BlsCalls:
    """`ModelCalls` by BLS. Belongs to the event loop's thread.

    Args:
        loop: the event loop.
        blocking_call: makes one call.
        streaming_call: the way to decoupled models; without one there is none.
        room: most bytes of the inputs of all calls and streams at a time. No key takes more than it leaves free.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        blocking_call: BlockingCall,
        streaming_call: StreamingCall | None = None,
        room: int = sys.maxsize,
    ) -> None:
        self._room = room
        self._held = InFlight(room, several=lambda: True)
        self._waiting_streams: deque[tuple[str, int, asyncio.Future[None]]] = deque()
        """Key, bytes of the inputs, and what is resolved once they have room."""
        self._loop = loop
        self._blocking_call = blocking_call
        self._streaming_call = streaming_call
        self._models: dict[str, _Calls] = {}
        self._work: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads = 0
        self._closed = False

    async def call(
        self, model: str, inputs: Mapping[str, Array], outputs: Sequence[str], *, timeout_s: float, key: str = ""
    ) -> Arrays:
        """The one response of a model; see `ModelCalls.call`.

        A call whose deadline has passed, or whose caller has gone, runs on until the model answers. Once all calls that
        a model may have are overdue it is not called again before one of them has ended.
        """
        if self._closed:
            raise ModelUnavailableError("the server is shutting down")
        size = self._size(inputs)
        calls = self._models.setdefault(model, _Calls())
        if calls.stuck:
            raise ModelTimeoutError(f"the model '{model}' has left {MAX_CALLS_PER_MODEL} calls without an answer")
        call = _Call(model, inputs, outputs, key, size)
        timer = self._loop.call_later(timeout_s, self._expire, call, timeout_s)
        calls.waiting.append(call)
        self._start(calls)
        try:
            return await call.answer
        finally:
            # The timer of a call that runs on without its caller still says when it is overdue.
            if not call.running:
                timer.cancel()

    def stream(
        self, model: str, inputs: Mapping[str, Array], outputs: Sequence[str], *, timeout_s: float, key: str = ""
    ) -> AsyncGenerator[Arrays, None]:
        """The responses of a decoupled model; see `ModelCalls.stream`."""
        if self._streaming_call is None:
            raise NoStreamsError("models that stream cannot be called here")
        return self._stream(self._streaming_call, model, inputs, outputs, timeout_s, key)

    async def _stream(
        self,
        streaming_call: StreamingCall,
        model: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str],
        timeout_s: float,
        key: str,
    ) -> AsyncGenerator[Arrays, None]:
        size = self._size(inputs)
        began_at = time.monotonic()
        await self._take(model, key, size, timeout_s)
        try:
            left = timeout_s - (time.monotonic() - began_at)
            async with aclosing(streaming_call(model, inputs, outputs, timeout_s=left)) as responses:
                async for response in responses:
                    yield response
        finally:
            self._give_back(key, size)

    def close(self) -> None:
        """Refuse further calls and fail those that are open; a thread ends once its call has."""
        self._closed = True
        for calls in self._models.values():
            for call in (*calls.waiting, *calls.running):
                _fail(call.answer, ModelUnavailableError("the server is shutting down"))
            calls.waiting.clear()
        for _, _, waiting in self._waiting_streams:
            _fail(waiting, ModelUnavailableError("the server is shutting down"))
        self._waiting_streams.clear()
        for _ in range(self._threads):
            self._work.put(None)

    def _size(self, inputs: Mapping[str, Array]) -> int:
        """Bytes of the inputs.

        Raises:
            InputTooLargeError: there never is room for them.
        """
        size = sum(map(_bytes, inputs.values()))
        if size > self._room:
            raise InputTooLargeError(self._room)
        return size

    async def _take(self, model: str, key: str, size: int, timeout_s: float) -> None:
        """Take room for the inputs of a stream.

        Raises:
            ModelTimeoutError: there was none in time.
            ModelUnavailableError: the server is shutting down.
        """
        waiting = self._loop.create_future()
        self._waiting_streams.append((key, size, waiting))
        self._let_streams_in()
        timer = self._loop.call_later(
            timeout_s, _fail, waiting, ModelTimeoutError(f"the model '{model}' has had no room for its input")
        )
        try:
            await waiting
        except asyncio.CancelledError:
            # It may have been given room while its caller was being told to end.
            if not waiting.cancelled() and waiting.exception() is None:
                self._give_back(key, size)
            raise
        finally:
            timer.cancel()

    def _give_back(self, key: str, size: int) -> None:
        """Free room, and start what has waited for it."""
        self._held.give_back(key, size)
        self._let_streams_in()
        for model, calls in list(self._models.items()):
            self._start(calls)
            if not calls.running and not calls.waiting:
                del self._models[model]

    def _let_streams_in(self) -> None:
        waiting, self._waiting_streams = self._waiting_streams, deque()
        for key, size, future in waiting:
            if future.done():
                continue
            if self._held.take(key, size):
                future.set_result(None)
            else:
                self._waiting_streams.append((key, size, future))

    def _start(self, calls: _Calls) -> None:
        passed_over: deque[_Call] = deque()
        full: set[str] = set()
        while calls.waiting and len(calls.running) < MAX_CALLS_PER_MODEL:
            call = calls.waiting.popleft()
            if call.answer.done():
                continue
            # What has no room lets other keys' calls go first.
            if call.key in full or not self._held.take(call.key, call.size, free=call.size <= SMALL_BYTES):
                full.add(call.key)
                passed_over.append(call)
                continue
            call.running = True
            calls.running.add(call)
            self._work.put(call)
            if self._threads < min(MAX_CALLS, sum(len(calls.running) for calls in self._models.values())):
                self._threads += 1
                # A daemon: a model that hangs must not hold up the end of this process.
                threading.Thread(target=self._serve, name=f"bls-{self._threads}", daemon=True).start()
        calls.waiting.extendleft(reversed(passed_over))

    def _expire(self, call: _Call, timeout_s: float) -> None:
        call.overdue = call.running
        _fail(call.answer, ModelTimeoutError(f"the model '{call.model}' has not answered within {timeout_s:g} s"))

    def _serve(self) -> None:
        """Thread: calls, one after the other."""
        while (call := self._work.get()) is not None:
            # While it waited for a thread its caller may have gone.
            answer = {} if call.answer.done() else self._answer(call)
            # The loop may be closed.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._end, call, answer)
            # Tensors are not kept until the next call comes.
            del call, answer

    def _answer(self, call: _Call) -> Arrays | ModelCallError:
        try:
            return self._blocking_call(call.model, call.inputs, call.outputs)
        except ModelCallError as error:
            # A new one: a traceback keeps the backend's own objects, which crash the process if they outlive the model.
            return type(error)(*error.args)
        except Exception:
            logger.exception("a call of the model '%s' failed", call.model)
            return ModelCallError(f"the call of the model '{call.model}' failed; see the server's log")

    def _end(self, call: _Call, answer: Arrays | ModelCallError) -> None:
        calls = self._models[call.model]
        calls.running.remove(call)
        call.running = False
        if isinstance(answer, ModelCallError):
            _fail(call.answer, answer)
        elif not call.answer.done():
            call.answer.set_result(answer)
        self._give_back(call.key, call.size)


def _bytes(array: Array) -> int:
    return sum(map(len, array.flat)) if array.dtype == np.object_ else array.nbytes


def _fail(answer: asyncio.Future[Any], error: ModelCallError) -> None:
    if not answer.done():
        answer.set_exception(error)
