"""BLS calls of the event loop: plain one-response calls of other models, on a few threads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

from openai_bls.transport.model_calls import (
    Array,
    Arrays,
    ModelCallError,
    ModelTimeoutError,
    ModelUnavailableError,
    NoStreamsError,
)

logger = logging.getLogger(__name__)

BlockingCall = Callable[[str, Mapping[str, Array], Sequence[str]], Arrays]
"""`pb_utils.call_model`: model, inputs by name, names of the outputs wanted. Blocks until the model has answered."""

StreamingCall = Callable[..., AsyncGenerator[Arrays, None]]
"""`ModelCalls.stream`."""

# A running call holds one of the threads that the Python backend has per instance (`thread-pool-size`: 256 by our
# launcher, 32 by a bare tritonserver) until its model answers, and so does a response on its way out on Triton's
# endpoints. Nothing can end such a call. So no model may have all threads, nor calls all of the backend's.
MAX_CALLS = 24
"""Calls that run at a time."""
MAX_CALLS_PER_MODEL = 8
"""Calls of one model that run at a time; the next wait for their turn."""


class _Call:
    """A call, waiting or running."""

    def __init__(self, model: str, inputs: Mapping[str, Array], outputs: Sequence[str]) -> None:
        self.model = model
        self.inputs = inputs
        self.outputs = outputs
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
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, blocking_call: BlockingCall, streaming_call: StreamingCall | None = None
    ) -> None:
        self._loop = loop
        self._blocking_call = blocking_call
        self._streaming_call = streaming_call
        self._models: dict[str, _Calls] = {}
        self._work: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads = 0
        self._closed = False

    async def call(
        self, model: str, inputs: Mapping[str, Array], outputs: Sequence[str], *, timeout_s: float
    ) -> Arrays:
        """The one response of a model; see `ModelCalls.call`.

        A call whose deadline has passed, or whose caller has gone, runs on until the model answers. Once all calls that
        a model may have are overdue it is not called again before one of them has ended.
        """
        if self._closed:
            raise ModelUnavailableError("the server is shutting down")
        calls = self._models.setdefault(model, _Calls())
        if calls.stuck:
            raise ModelTimeoutError(f"the model '{model}' has left {MAX_CALLS_PER_MODEL} calls without an answer")
        call = _Call(model, inputs, outputs)
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
        self, model: str, inputs: Mapping[str, Array], outputs: Sequence[str], *, timeout_s: float
    ) -> AsyncGenerator[Arrays, None]:
        """The responses of a decoupled model; see `ModelCalls.stream`."""
        if self._streaming_call is None:
            raise NoStreamsError("models that stream cannot be called here")
        return self._streaming_call(model, inputs, outputs, timeout_s=timeout_s)

    def close(self) -> None:
        """Refuse further calls and fail those that are open; a thread ends once its call has."""
        self._closed = True
        for calls in self._models.values():
            for call in (*calls.waiting, *calls.running):
                _fail(call, ModelUnavailableError("the server is shutting down"))
            calls.waiting.clear()
        for _ in range(self._threads):
            self._work.put(None)

    def _start(self, calls: _Calls) -> None:
        while calls.waiting and len(calls.running) < MAX_CALLS_PER_MODEL:
            call = calls.waiting.popleft()
            if call.answer.done():
                continue
            call.running = True
            calls.running.add(call)
            self._work.put(call)
            if self._threads < min(MAX_CALLS, sum(len(calls.running) for calls in self._models.values())):
                self._threads += 1
                # A daemon: a model that hangs must not hold up the end of this process.
                threading.Thread(target=self._serve, name=f"bls-{self._threads}", daemon=True).start()

    def _expire(self, call: _Call, timeout_s: float) -> None:
        call.overdue = call.running
        _fail(call, ModelTimeoutError(f"the model '{call.model}' has not answered within {timeout_s:g} s"))

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
            _fail(call, answer)
        elif not call.answer.done():
            call.answer.set_result(answer)
        self._start(calls)
        if not calls.running and not calls.waiting:
            del self._models[call.model]


def _fail(call: _Call, error: ModelCallError) -> None:
    if not call.answer.done():
        call.answer.set_exception(error)
