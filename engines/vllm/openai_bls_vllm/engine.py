"""Engine `vllm`: vLLM behind the `Engine` interface.

One thread runs an event loop, and all bookkeeping happens there. `submit` and `cancel` put commands into the queue and
wake the loop once for all of them. vLLM's client gives the outputs of a step to `_on_outputs`, which makes one delta of
each and calls the listener once. There is no task, lock or wake-up per token.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from openai_bls.core.engine import EngineStats, LoraError, PrefixCacheError, StepListener
from openai_bls.core.engine_types import EngineInfo, GenerationRequest, TokenDelta
from openai_bls.core.manifest import EngineLoadError, first_line
from openai_bls.engines.adapters import require_loaded, require_room
from openai_bls.engines.capabilities import ENGINE_FAILED
from openai_bls.engines.command_queue import CommandQueue, emit, submit
from openai_bls.engines.grammars.errors import GrammarError
from openai_bls_vllm import lora as adapters
from openai_bls_vllm import pooling
from openai_bls_vllm.adapter_table import AdapterTable
from openai_bls_vllm.grammars.grammars import Constrained, Grammars
from openai_bls_vllm.interface import Client, Generation, Listeners, LoraAdapter
from openai_bls_vllm.loop_thread import LoopThread, OverError
from openai_bls_vllm.multi_node.watch import Gathering
from openai_bls_vllm.pooling import Task
from openai_bls_vllm.requests.live_requests import LiveRequests
from openai_bls_vllm.requests.load import Load
from openai_bls_vllm.requests.sampling import Runner
from openai_bls_vllm.worker_watch import WorkerWatch

logger = logging.getLogger(__name__)

CLOSE_S = 60.0
"""Seconds that `close` waits for vLLM to end its processes."""


class Opened(msgspec.Struct):
    """A loaded model in vLLM, and what is known of it only then."""

    client: Client
    info: EngineInfo
    runner: Runner = Runner()
    grammars: Grammars | None = None
    """Grammars of the model; None if they are not supported."""
    kv_blocks: int = 0
    """Blocks of the KV cache, of all engine cores together."""
    kv_block_size: int = 0
    """Tokens per block."""
    gathering: Gathering | None = None
    """The other machines; None if there is one alone."""
    task: Task = "generate"


class VllmEngine:
    """An `Engine` that runs a checkpoint in vLLM."""

    def __init__(
        self,
        open_client: Callable[[], Opened],
        on_step: StepListener,
        *,
        lora: Sequence[LoraAdapter] = (),
        checkpoint: Path = Path(),
    ) -> None:
        """Start the engine's thread and load the model on it. Takes minutes.

        Args:
            open_client: loads the model; called on the event loop.
            on_step: the listener.
            lora: adapters that are there from the beginning.
            checkpoint: folder of the model's config.json, to which adapters that come later must fit.

        Raises:
            Exception: that of `open_client`.
        """
        self._on_step = on_step
        self._checkpoint = checkpoint
        self._lora_lock = threading.Lock()
        self._requests = LiveRequests(lambda: self._info.model_name)
        self._answers: list[TokenDelta] = []
        """Deltas that come from no output, for the next call of the listener."""
        self._flush_due = False
        self._failed = False
        self._stopping = False
        self._compiling: dict[str, asyncio.Future[Constrained]] = {}
        """Grammars by the request's id in vLLM."""
        self._woken = False
        self._thread = LoopThread("vllm-engine")
        self._inbox: CommandQueue[GenerationRequest | int] = CommandQueue(self._wake)
        opened = self._thread.start(lambda: self._open(open_client, lora), self._close)
        self._load = Load(opened.kv_blocks, opened.kv_block_size)
        self._client = opened.client
        self._info = opened.info
        self._runner = opened.runner
        self._grammars = opened.grammars
        self._lora = AdapterTable(lora, opened.info.max_loras)

    @property
    def info(self) -> EngineInfo:
        """Capabilities and limits of this engine."""
        return self._info

    def submit(self, request: GenerationRequest) -> None:
        """Take a request; an id that is already live is ignored, so that one id has one end."""
        submit(self._inbox.put, self._on_step, request)

    def cancel(self, request_id: int) -> None:
        """Stop a request soon."""
        self._inbox.put(request_id)

    def stats(self) -> EngineStats:
        """The load after vLLM's newest step."""
        return self._load.stats(len(self._requests), self._info.max_batch_size, failed=self._failed)

    def load_lora(self, name: str, path: str) -> None:
        """Load the adapter in the folder `path`; from then on requests may name it."""
        with self._lora_lock:
            require_room(self._info, name)
            self._tidy()
            self._lora.require_slot()
            folder, most = Path(path), self._info.max_lora_rank
            adapter = adapters.read(name, folder, self._checkpoint, most, self._lora.numbers)
            try:
                loaded = self._thread.ask(self._client.add_lora(adapter))
            except OverError:
                raise LoraError(ENGINE_FAILED) from None
            except Exception as error:
                logger.warning("vLLM does not load the adapter %s", name, exc_info=True)
                raise LoraError(f"vLLM does not load the adapter {name}: {first_line(error)}") from None
            if not loaded:
                raise LoraError(f"vLLM does not load the adapter {name}")
            self._lora.add(adapter)
            self._name_adapters()

    def unload_lora(self, name: str) -> None:
        """Take no more requests for an adapter; vLLM drops its weights, if none runs, now, else at a later call."""
        with self._lora_lock:
            require_loaded(self._info, name)
            adapter = self._lora.take_out(name)
            self._lora.retired[adapter.number] = adapter
            self._name_adapters()
            self._tidy()

    def reset_prefix_cache(self) -> None:
        """Forget the cached prompts."""
        try:
            done = self._thread.ask(self._client.reset_prefix_cache())
        except OverError:
            raise PrefixCacheError(ENGINE_FAILED) from None
        except Exception as error:
            raise PrefixCacheError(f"vLLM does not reset its prefix cache: {first_line(error)}") from None
        if not done:
            raise PrefixCacheError("sequences that run hold some of the prefix cache: try again later", busy=True)

    def close(self) -> None:
        """End every live request with "cancelled", end vLLM's processes and the thread.

        If vLLM does not shut down within `CLOSE_S`, its threads are left behind.
        """
        self._inbox.close()
        if not self._thread.here and not self._thread.join(CLOSE_S):
            logger.error("vLLM does not shut down; its processes are left behind")

    def _tidy(self) -> None:
        try:
            self._thread.ask(self._drop_unused())
        except OverError:
            raise LoraError(ENGINE_FAILED) from None

    def _name_adapters(self) -> None:
        self._info = msgspec.structs.replace(self._info, lora_names=tuple(self._lora.by_name))

    def _wake(self) -> None:
        # A second wake-up by a thread that sees the flag too late does no harm.
        if not self._woken:
            self._woken = True
            self._thread.call(self._take_commands)

    # Everything below runs on the engine's thread.

    async def _open(self, open_client: Callable[[], Opened], lora: Sequence[LoraAdapter]) -> Opened:
        opened = open_client()
        opened.client.start(Listeners(self._on_outputs, self._on_refused, self._on_death))
        if opened.gathering is not None:
            opened.gathering.watch(self._on_lost)
        try:
            if opened.task != "generate":
                pooling.require(opened.task, await opened.client.supported_tasks())
            for adapter in lora:
                if not await opened.client.add_lora(adapter):
                    raise LoraError(f"vLLM does not load the adapter {adapter.name}")
        except BaseException:
            self._shut_down(opened)
            raise
        self._watch = WorkerWatch(lambda sentence: self._on_death(RuntimeError(sentence)))
        return opened

    def _close(self, opened: Opened) -> None:
        self._watch.close()
        if opened.grammars is not None:
            opened.grammars.close()
        self._shut_down(opened)

    def _shut_down(self, opened: Opened) -> None:
        try:
            opened.client.shutdown()
        except Exception:
            logger.exception("vLLM did not shut down cleanly")
        if opened.gathering is not None:
            opened.gathering.close(orderly=not self._failed)

    def _take_commands(self) -> None:
        if self._stopping:
            # Woken by a further `close`.
            return
        # First, so that whatever comes after the inbox was emptied wakes the loop again.
        self._woken = False
        closed = self._inbox.closed
        generations: list[Generation] = []
        aborted: list[str] = []
        for command in self._inbox.drain():
            if isinstance(command, int):
                key = self._requests.cancel(command)
                if key is not None:
                    aborted.append(key)
                    self._give_up_grammar(key)
                    self._answer(TokenDelta(command, [], "cancelled"))
            else:
                self._take(command, generations)
        if generations and not closed:
            self._client.add(generations)
        if closed:
            ids, keys = self._requests.end_all()
            aborted.extend(keys)
            for key in keys:
                self._give_up_grammar(key)
            self._answers.extend(TokenDelta(request_id, [], "cancelled") for request_id in ids)
        if aborted and not self._failed:
            self._client.abort(aborted)
        if closed:
            self._flush()
            self._stopping = True
            self._thread.stop()

    def _take(self, request: GenerationRequest, generations: list[Generation]) -> None:
        """Add a request to those that start, or answer it."""
        if self._failed:
            self._answer(TokenDelta(request.request_id, [], "error", error=ENGINE_FAILED))
            return
        adapter = None if request.lora_name is None else self._lora.by_name.get(request.lora_name)
        started = self._requests.start(request, self._info, self._runner, adapter)
        if isinstance(started, TokenDelta):
            self._answer(started)
        elif started is not None and request.grammar is not None:
            self._compile(request, started)
        elif started is not None:
            generations.append(started)

    def _compile(self, request: GenerationRequest, generation: Generation) -> None:
        """Start a request once its grammar is compiled, on another thread."""
        assert self._grammars is not None
        key = generation.request_id
        compiled = asyncio.wrap_future(self._grammars.start(key, request), loop=self._thread.loop)
        self._compiling[key] = compiled
        compiled.add_done_callback(lambda done: self._start_compiled(generation, done))

    def _give_up_grammar(self, key: str) -> None:
        """Compile no further for a request that has ended, if it waits for its grammar."""
        compiled = self._compiling.pop(key, None)
        if compiled is not None and self._grammars is not None:
            compiled.cancel()
            self._grammars.cancel(key)

    def _start_compiled(self, generation: Generation, compiled: asyncio.Future[Constrained]) -> None:
        self._compiling.pop(generation.request_id, None)
        if compiled.cancelled():
            return
        error = compiled.exception()
        if error is None:
            started = self._requests.constrain(generation, compiled.result())
            if started is not None:
                self._client.add([started])
            return
        if isinstance(error, GrammarError):
            self._end(generation.request_id, str(error), invalid=True)
            return
        logger.error("the compiler of grammars failed", exc_info=error)
        self._end(generation.request_id, ENGINE_FAILED, invalid=False)

    def _on_outputs(self, outputs: Sequence[Any], stats: Any) -> None:
        """Make deltas of a step's outputs and call the listener."""
        if stats is not None:
            self._load.observe(stats)
        deltas, generated, stopped = self._requests.advance(outputs)
        if stopped:
            self._client.abort(stopped)
        self._load.generated_tokens += generated
        self._load.steps += bool(deltas)
        if self._answers:
            deltas += self._answers
            self._answers = []
        emit(self._on_step, deltas)

    def _on_refused(self, key: str, problem: str) -> None:
        self._end(key, problem, invalid=True)

    def _end(self, key: str, problem: str, *, invalid: bool) -> None:
        """End a request that does not start; `invalid` if the request is at fault."""
        delta = self._requests.end(key, problem, invalid=invalid)
        if delta is not None:
            self._answer(delta)

    def _on_death(self, error: BaseException) -> None:
        if self._failed or self._stopping:
            return
        logger.error("vLLM's engine core has died; no request can be served any more", exc_info=error)
        self._failed = True
        self._thread.settle()
        ids, _ = self._requests.end_all()
        for request_id in ids:
            self._answer(TokenDelta(request_id, [], "error", error=ENGINE_FAILED))

    def _on_lost(self, sentence: str) -> None:
        """Die, as a machine is gone; on any thread."""
        self._thread.call(lambda: self._on_death(EngineLoadError(sentence)))

    def _answer(self, delta: TokenDelta) -> None:
        self._answers.append(delta)
        if not self._flush_due:
            self._flush_due = True
            self._thread.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        answers, self._answers = self._answers, []
        emit(self._on_step, answers)

    async def _drop_unused(self) -> None:
        """Have vLLM drop the weights of unloaded adapters that no request uses any more."""
        retired = self._lora.retired
        for number in [number for number in retired if not self._requests.use(number)]:
            try:
                await self._client.remove_lora(number)
            except Exception:
                logger.warning("vLLM did not remove the adapter %s", retired[number].name, exc_info=True)
            del retired[number]
