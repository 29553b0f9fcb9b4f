"""Engine `tensorrt_llm`: TensorRT-LLM's LLM API behind the `Engine` interface.

One thread runs an event loop, and all bookkeeping happens there. `submit` and `cancel` put commands into the queue and
wake the loop once for all of them. A request that runs is a task that iterates over its output; each step
only marks it. What the tasks of one turn of the loop have marked is read off their outputs in the next, and told to the
listener together, so that a frame covers a step of TensorRT-LLM's. There is no task, lock or wake-up per token.

The loop runs until TensorRT-LLM has shut down, for its threads hand responses to it to the last.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from pathlib import Path
from typing import Any

from openai_bls.core.engine import EngineStats, PrefixCacheError, StepListener
from openai_bls.core.engine_types import EngineInfo, GenerationRequest, TokenDelta
from openai_bls.core.manifest import Manifest, first_line
from openai_bls.engines import capabilities
from openai_bls.engines.capabilities import ENGINE_FAILED
from openai_bls.engines.command_queue import CommandQueue, emit, submit
from openai_bls.engines.kv_events.publisher import KvEventPublisher
from openai_bls_tensorrt_llm import limits
from openai_bls_tensorrt_llm.health_watch import EXECUTOR_ENDED, HealthWatch, Progress
from openai_bls_tensorrt_llm.installed import images
from openai_bls_tensorrt_llm.installed.api import Api
from openai_bls_tensorrt_llm.installed.interface import Llm, Output
from openai_bls_tensorrt_llm.kv_events import KvEvents
from openai_bls_tensorrt_llm.loaded_adapters import LoadedAdapters
from openai_bls_tensorrt_llm.request_state import RequestState
from openai_bls_tensorrt_llm.sampling import end_token, sampling

logger = logging.getLogger(__name__)

CLOSE_S = 60.0
"""Seconds that `close` waits for TensorRT-LLM to end its ranks."""

# Starting a request takes TensorRT-LLM a part of a millisecond: after so many the loop has a turn for the others.
_STARTS_A_TURN = 16
# Tokens per block of the KV cache, where nothing else is asked for: TensorRT-LLM's default.
_TOKENS_PER_BLOCK = 32


class TrtLlmEngine:
    """An `Engine` that runs a TensorRT-LLM engine, or a checkpoint in TensorRT-LLM's PyTorch flow."""

    def __init__(
        self,
        api: Api,
        llm: Llm,
        manifest: Manifest,
        adapters: LoadedAdapters,
        on_step: StepListener,
        *,
        max_tokens_in_kv_cache: int = 0,
        grammar_end_id: int | None = None,
        chunked_context: bool = True,
        kv_events: KvEventPublisher | None = None,
    ) -> None:
        """Start the engine's thread.

        Args:
            api: the installed TensorRT-LLM.
            llm: model that `api` has loaded; it belongs to the engine from now on.
            manifest: manifest of the engine.
            adapters: adapters that requests may name, with the engine's capabilities and limits.
            on_step: the listener.
            max_tokens_in_kv_cache: tokens of all sequences together, as far as known; 0 if not.
            grammar_end_id: the token that ends a grammar, if known.
            chunked_context: whether a prompt may be longer than one step.
            kv_events: publisher of KV events, which belongs to the engine from now on; None publishes none.
        """
        self._api = api
        self._llm = llm
        self._manifest = manifest
        self._adapters = adapters
        self._on_step = on_step
        self._cache_tokens = max_tokens_in_kv_cache
        self._grammar_end_id = grammar_end_id
        self._chunked_context = chunked_context
        self._live: dict[int, RequestState] = {}
        self._starting: deque[RequestState] = deque()
        self._marked: list[RequestState] = []
        self._answers: list[TokenDelta] = []
        """Deltas that come from no output, for the next flush."""
        self._flush_due = False
        self._failed = False
        self._stopping = False
        self._steps = self._outputs = self._generated = 0
        self._woken = False
        self._loop = asyncio.new_event_loop()
        self._kv_events = kv_events
        self._kv_translation = KvEvents(_TOKENS_PER_BLOCK)
        self._health_watch = HealthWatch(
            api,
            llm,
            self._loop,
            progress=self._progress,
            on_death=self._fail_all,
            on_kv_events=self._publish_kv_events,
        )
        self._inbox: CommandQueue[GenerationRequest | int] = CommandQueue(self._wake)
        self._thread = threading.Thread(target=self._run, name="tensorrt-llm-engine", daemon=True)
        self._thread.start()

    @property
    def info(self) -> EngineInfo:
        """Capabilities and limits of this engine."""
        return self._adapters.info

    def submit(self, request: GenerationRequest) -> None:
        """Take a request; an id that is already live is ignored, so that one id has one end."""
        submit(self._inbox.put, self._on_step, request)

    def cancel(self, request_id: int) -> None:
        """Stop a request soon."""
        self._inbox.put(request_id)

    def stats(self) -> EngineStats:
        """The present load, by counts of the engine's own.

        The LLM API tells of its batch and its cache only on request and with a delay, so a request counts as running as
        long as the batch has room for it, and the cache's use, where its size is known, is that of live sequences.
        """
        lives = list(self._live.values())
        running = min(len(lives), self.info.max_batch_size)
        used = (
            sum(len(live.request.prompt_token_ids) + live.cursor.count for live in lives) if self._cache_tokens else 0
        )
        return EngineStats(
            running=running,
            waiting=len(lives) - running,
            kv_cache_usage=min(1.0, used / self._cache_tokens) if self._cache_tokens else 0.0,
            steps=self._steps,
            generated_tokens=self._generated,
            failed=self._failed,
            kv_blocks=self._cache_tokens // _TOKENS_PER_BLOCK,
            kv_block_size=_TOKENS_PER_BLOCK if self._cache_tokens else 0,
        )

    def load_lora(self, name: str, path: str) -> None:
        """Let requests name the adapter in the folder `path`; TensorRT-LLM reads its weights with the first."""
        self._adapters.load(name, Path(path))

    def unload_lora(self, name: str) -> None:
        """Take no more requests for an adapter; TensorRT-LLM drops its weights when others need the room."""
        self._adapters.unload(name)

    def reset_prefix_cache(self) -> None:
        """Refuse: TensorRT-LLM's LLM API has no such call."""
        raise PrefixCacheError("TensorRT-LLM cannot reset its prefix cache while it runs: reload the model")

    def close(self) -> None:
        """End every live request with "cancelled", shut TensorRT-LLM down and end the thread.

        If TensorRT-LLM does not shut down within `CLOSE_S`, its threads are left behind.
        """
        self._inbox.close()
        if threading.current_thread() is self._thread:
            return
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            logger.error("TensorRT-LLM does not shut down; its threads are left behind")
        if self._kv_events is not None:
            self._kv_events.close()

    def _wake(self) -> None:
        # A second wake-up by a thread that sees the flag too late does no harm.
        if not self._woken:
            self._woken = True
            # Closed is the loop once the engine is.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._take_commands)

    # Everything below runs on the engine's thread.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._health_watch.start()
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._wind_up())
            self._loop.close()

    async def _wind_up(self) -> None:
        self._health_watch.stop()
        await _end_tasks()
        done = asyncio.Event()

        def shut_down() -> None:
            try:
                self._llm.shutdown()
            except Exception:
                logger.exception("TensorRT-LLM did not shut down cleanly")
            finally:
                self._loop.call_soon_threadsafe(done.set)

        # The requests that were aborted have responses to come, which TensorRT-LLM's threads fail on without a loop.
        threading.Thread(target=shut_down, name="tensorrt-llm-shutdown", daemon=True).start()
        await done.wait()

    def _publish_kv_events(self, told: list[Any]) -> None:
        if self._kv_events is not None and (events := self._kv_translation.translated(told)):
            self._kv_events.publish(events)

    def _take_commands(self) -> None:
        if self._stopping:
            # Woken by a further `close`.
            return
        # First, so that whatever comes after the inbox was emptied wakes the loop again.
        self._woken = False
        closed = self._inbox.closed
        for command in self._inbox.drain():
            if isinstance(command, int):
                live = self._live.get(command)
                if live is not None:
                    self._end(live)
                    self._answer(TokenDelta(command, [], "cancelled"))
            else:
                self._take(command)
        if closed:
            for live in list(self._live.values()):
                self._end(live)
                self._answer(TokenDelta(live.request.request_id, [], "cancelled"))
            self._flush()
            self._stopping = True
            self._loop.stop()
        else:
            self._start_some()

    def _take(self, request: GenerationRequest) -> None:
        request_id = request.request_id
        if request_id in self._live:
            logger.warning("request id %d is already live: ignored", request_id)
            return
        adapter, info = self._adapters.get(request.lora_name), self.info
        problem = capabilities.refusal(request, info) or limits.refusal(
            request, self._manifest, info, chunked_context=self._chunked_context
        )
        if not problem and request.lora_name is not None and adapter is None:
            problem = f"lora_name: the adapter {request.lora_name!r} was unloaded"
        if problem:
            self._answer(TokenDelta(request_id, [], "error", error=problem, invalid=True))
        elif self._failed:
            self._answer(TokenDelta(request_id, [], "error", error=ENGINE_FAILED))
        elif not request.max_tokens:
            self._answer(TokenDelta(request_id, [], "length"))
        else:
            live = RequestState(request, end_token(request, info, self._grammar_end_id), adapter, info.model_name)
            self._live[request_id] = live
            self._starting.append(live)

    def _start_some(self) -> None:
        for _ in range(min(_STARTS_A_TURN, len(self._starting))):
            live = self._starting.popleft()
            if not live.ended:
                self._start(live)
                if live.request.media is not None:
                    # It took tens of milliseconds.
                    break
        if self._starting:
            self._loop.call_soon(self._start_some)

    def _start(self, live: RequestState) -> None:
        request = live.request
        if not self._api.healthy(self._llm):
            # 0.20 would wait for the answer of a dead one for ever.
            self._fail_all(EXECUTOR_ENDED)
            return
        self._health_watch.used()
        try:
            live.output = self._api.generate(
                self._llm,
                request.prompt_token_ids,
                sampling(request, self.info, live.end_id, self._grammar_end_id),
                live.adapter,
                request.media,
            )
        except ValueError as error:
            self._end(live)
            self._answer(TokenDelta(request.request_id, [], "error", error=first_line(error), invalid=True))
        except Exception as error:
            self._fail(live, error)
        else:
            if request.media is not None and (problem := images.difference(request.prompt_token_ids, live.output)):
                logger.error("a request failed: %s", problem)
                live.output.abort()
                self._end_with_error(live)
                return
            live.task = self._loop.create_task(self._follow(live, live.output))

    async def _follow(self, live: RequestState, output: Output) -> None:
        try:
            async for _ in output:
                self._outputs += 1
                if live.request.logprobs is not None:
                    live.cursor.observe(output.outputs[0])
                self._mark(live)
        except Exception as error:
            if not live.ended:
                self._fail(live, error)
            return
        live.finished = True
        self._mark(live)

    def _mark(self, live: RequestState) -> None:
        if not live.marked:
            live.marked = True
            self._marked.append(live)
            self._flush_soon()

    def _answer(self, delta: TokenDelta) -> None:
        self._answers.append(delta)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            # Behind the tasks that this turn has still to resume.
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        marked, self._marked = self._marked, []
        deltas: list[TokenDelta] = []
        for live in marked:
            live.marked = False
            if live.ended:
                continue
            delta = live.advance()
            if delta is None:
                continue
            if delta.finish_reason is not None:
                self._end(live)
            self._generated += len(delta.token_ids) + (delta.stop_token_id is not None)
            deltas.append(delta)
        self._steps += bool(deltas)
        # After the outputs': failures end what had tokens in this very turn.
        answers, self._answers = self._answers, []
        emit(self._on_step, deltas + answers)

    def _end(self, live: RequestState) -> None:
        """Forget a request whose last delta is on its way; stop it if it still runs."""
        del self._live[live.request.request_id]
        live.end()

    def _fail(self, live: RequestState, error: Exception) -> None:
        """End a request that `error` came from, and all others if the executor is at its end."""
        # 1.0 and later shut all down for a request that a rank refuses, with an error of the request's kind.
        if self._api.is_of_the_request(error) and self._api.healthy(self._llm):
            logger.error("TensorRT-LLM failed a request", exc_info=error)
            self._end_with_error(live)
        else:
            self._fail_all("TensorRT-LLM failed", error)

    def _progress(self) -> Progress:
        return Progress(self._outputs, len(self._live), any(live.cursor.count for live in self._live.values()))

    def _fail_all(self, what: str, error: Exception | None = None) -> None:
        if self._failed:
            return
        logger.error("%s; no request can be served any more", what, exc_info=error)
        self._failed = True
        for live in list(self._live.values()):
            self._end_with_error(live)

    def _end_with_error(self, live: RequestState) -> None:
        self._end(live)
        self._answer(TokenDelta(live.request.request_id, [], "error", error=ENGINE_FAILED))


async def _end_tasks() -> None:
    """Let tasks that were cancelled see it, or the loop warns of them."""
    current = asyncio.current_task()
    await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not current), return_exceptions=True)
