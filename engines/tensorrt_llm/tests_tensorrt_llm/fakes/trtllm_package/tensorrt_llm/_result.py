"""`RequestOutput`, which is the handle of a running request and its result at once, with the real one's habits:

- iterating yields the object itself, changed; `token_ids` grows in place;
- a matched stop sequence is cut off `token_ids` when the request ends, whatever was yielded before;
- the queue belongs to the event loop that was running when the request was made, and what a step brings to several
  requests is put into all queues before that loop is told once; several responses are taken without a turn of it;
- an error of a request is a text; an exception in its place, or in the executor's error queue, shuts the executor down;
- in the TensorRT flow of 0.20 `logprobs` has those of the newest response alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import weakref
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tensorrt_llm import _settings
from tensorrt_llm._recorded import table

if TYPE_CHECKING:

    class _CompletionOutput:
        """As the table has it."""

        def __init__(self, index: int) -> None: ...

        token_ids: list[int]
        logprobs: list[Any]
        cumulative_logprob: float | None
        finish_reason: str | None
        stop_reason: int | str | None

else:
    _CompletionOutput = table.made("CompletionOutput")


class RequestError(RuntimeError):
    """A request that failed."""


class EventLoopShutdownError(Exception):
    """Responses came for an event loop that does not run any more."""


@dataclass(slots=True)
class Logprob:
    """Of one token at one place."""

    logprob: float
    rank: int | None = None


@dataclass
class Response:
    """What the executor sends of one step."""

    index: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] | None = None
    cumulative_logprob: float | None = None
    finish: str | None = None
    """`end_id`, `stop_words`, `length` or `cancelled`."""
    is_final: bool = False
    """The last of the whole request."""
    error: str | Exception | None = None


class CompletionOutput(_CompletionOutput):
    """One sequence's output."""

    @property
    def length(self) -> int:
        """Of what was generated."""
        return len(self.token_ids)


class RequestOutput:
    """Made by `LLM.generate_async`."""

    def __init__(
        self, request_id: int, prompt_token_ids: list[int], params: Any, streaming: bool, executor: Any
    ) -> None:
        self.request_id = request_id
        self.prompt: str | None = None
        self.prompt_token_ids = prompt_token_ids
        self._params = params
        self._streaming = streaming
        self._outputs = [CompletionOutput(index) for index in range(params.best_of)]
        self._done = False
        self._aborted = False
        self._executor = weakref.ref(executor)
        self._queue: queue.Queue[Response] = queue.Queue()
        self._responses: deque[Response] = deque()
        self._arrived = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        with contextlib.suppress(RuntimeError):
            self.loop = asyncio.get_running_loop()

    @property
    def outputs(self) -> list[CompletionOutput]:
        """The n best."""
        return self._outputs[: self._params.n]

    @property
    def finished(self) -> bool:
        """Whether the request is at its end."""
        return self._done

    def put(self, response: Response) -> None:
        """Called by the executor's thread, and `hand_over` after it."""
        if self.loop is None:
            self._queue.put(response)
        else:
            self._responses.append(response)

    def notify(self) -> None:
        """On the event loop."""
        if self._responses:
            self._arrived.set()

    def abort(self) -> None:
        """Stop the request."""
        self._executor().abort(self.request_id)  # type: ignore[union-attr]
        self._aborted = True

    def aborted(self) -> bool:
        """Whether `abort` was called."""
        return self._aborted

    async def aresult(self) -> RequestOutput:
        """Wait for the end."""
        while not self._done:
            await self._step()
        return self

    def __await__(self) -> Any:
        return self.aresult().__await__()

    def __aiter__(self) -> RequestOutput:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._done:
            raise StopAsyncIteration
        await self._step()
        return self

    async def _step(self) -> None:
        assert self.loop is not None, (
            "The asyncio event loop was not present during initialization, so async operations are not available."
        )
        await self._arrived.wait()
        response = self._responses.popleft()
        if not self._responses:
            self._arrived.clear()
        self._take(response)

    def _take(self, response: Response) -> None:
        executor = self._executor()
        if response.error is not None and executor is not None:
            executor.handle_background_error(response.error)
        self._done = response.is_final
        output = self._outputs[response.index]
        output.token_ids.extend(response.token_ids)
        if response.cumulative_logprob is not None:
            output.cumulative_logprob = response.cumulative_logprob
        if response.logprobs is not None:
            if _settings.release() < (1, 0) and executor is not None and executor.flow == "tensorrt":
                output.logprobs = response.logprobs
            else:
                output.logprobs += response.logprobs
        if response.finish == "cancelled":
            output.finish_reason = "cancelled"
        if executor is not None:
            executor.handle_background_error()
        if self._done:
            self._finish(output, response)

    def _finish(self, output: CompletionOutput, response: Response) -> None:
        # As the real one: only the sequence whose response ends the request is told its reason.
        if response.finish == "end_id":
            output.finish_reason = "stop"
        elif response.finish == "length":
            output.finish_reason = "length"
        elif response.finish == "stop_words":
            output.finish_reason = "stop"
            for reason, ids in self._params._get_stop_words():
                if ids and output.token_ids[-len(ids) :] == ids:
                    output.stop_reason = reason
                    if not self._params.include_stop_str_in_output:
                        output.token_ids = output.token_ids[: -len(ids)]
                    break


def hand_over(outputs: Iterable[RequestOutput]) -> None:
    """Tell the event loop of outputs that have new responses, once for all of them."""
    waiting = [output for output in outputs if output.loop is not None]
    if not waiting:
        return
    loop = waiting[0].loop
    assert loop is not None
    if not loop.is_running():
        raise EventLoopShutdownError

    def notify() -> None:
        for output in waiting:
            output.notify()

    loop.call_soon_threadsafe(notify)


class IterationResult:
    """What the executor tells of its iterations; nothing bounds it."""

    def __init__(self) -> None:
        self.items: deque[str] = deque()

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        await asyncio.sleep(0)
        if not self.items:
            raise StopAsyncIteration
        return self.items.popleft()
