"""Client of vLLM's public `AsyncLLM`: a generator and a task per request.

Its outputs are given on as the engine core's are, so that `deltas` reads one form.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from openai_bls.core.manifest import first_line
from openai_bls_vllm.clients import media
from openai_bls_vllm.clients.objects import Objects
from openai_bls_vllm.interface import Generation, Listeners, LoraAdapter
from openai_bls_vllm.module import Vllm

logger = logging.getLogger(__name__)

_PLACES_AT_ONCE = 256
"""Places of a prompt whose log-probabilities are read in a turn of the event loop: some milliseconds."""


class _Event(msgspec.Struct):
    type: int
    timestamp: float


class PlainOutput(msgspec.Struct):
    """One `RequestOutput` in the form of `EngineCoreOutput`."""

    request_id: str
    new_token_ids: list[int]
    new_logprobs: Any = None
    new_prompt_logprobs_tensors: Any = None
    finish_reason: str | None = None
    stop_reason: Any = None
    num_cached_tokens: int = 0
    events: list[_Event] | None = None
    pooling_output: Any = None
    kv_transfer_params: dict[str, Any] | None = None
    spec_decode_metrics: Any = None


class AsyncLlmClient:
    """A `Client` over `AsyncLLM`. Made on the event loop's thread; blocks it until the model is loaded.

    Args:
        vllm: the installed package.
        config: `VllmConfig`.
    """

    name = "async_llm"

    def __init__(self, vllm: Vllm, config: Any) -> None:
        self._objects = Objects(vllm)
        self._dead_error = vllm.name("vllm.v1.engine.exceptions.EngineDeadError")
        self._loads: list[Any] = []
        self._llm = vllm.name("vllm.v1.engine.async_llm.AsyncLLM").from_vllm_config(
            config, stat_loggers=[self._stat_logger(vllm)], disable_log_stats=True
        )
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._outputs: list[PlainOutput] = []
        self._flush_due = False
        self._listeners: Listeners

    def _stat_logger(self, vllm: Vllm) -> Any:
        """A factory of stat loggers that keep the scheduler's statistics for the next flush."""
        keep = self._loads
        base = vllm.name("vllm.v1.metrics.loggers.StatLoggerBase")

        class Keeper(base):  # type: ignore[misc, valid-type]
            def __init__(self, *_: Any, **__: Any) -> None:
                pass

            def record(self, scheduler_stats: Any = None, *_: Any, **__: Any) -> None:
                if scheduler_stats is not None:
                    keep.append(scheduler_stats)

            def log_engine_initialized(self) -> None:
                pass

        return Keeper

    def start(self, listeners: Listeners) -> None:
        """Begin to give outputs on."""
        self._listeners = listeners
        handler = getattr(self._llm, "output_handler", None)
        if handler is not None:
            # It ends with the engine core, also while no request would hear of that.
            handler.add_done_callback(lambda _: listeners.death(self._dead_error()))

    def add(self, generations: Sequence[Generation]) -> None:
        """Start requests."""
        for generation in generations:
            self._tasks[generation.request_id] = asyncio.get_running_loop().create_task(self._generate(generation))

    async def _generate(self, generation: Generation) -> None:
        request_id = generation.request_id
        try:
            if generation.pooling:
                return await self._pool(generation)
            params = self._objects.sampling_params(generation)
            prompt: dict[str, Any] = {"type": "token", "prompt_token_ids": generation.prompt_token_ids}
            if generation.media is not None:
                prompt = media.prompt(generation)
            lora = self._objects.lora_request(generation.lora)
            outputs = self._llm.generate(prompt, params, request_id, lora_request=lora, priority=generation.priority)
            async for output in outputs:
                if generation.media is not None and output.prompt_token_ids:
                    media.require_same(generation, output.prompt_token_ids)
                found = await prompt_rows(output.prompt_logprobs or (), generation)
                self._take(plain_output(request_id, output, generation, found))
        except self._dead_error as error:
            self._listeners.death(error)
        except ValueError as error:
            self._listeners.refused(request_id, first_line(error))
        except Exception as error:
            if self._llm.errored:
                self._listeners.death(error)
                return
            logger.exception("vLLM failed a request")
            self._take(PlainOutput(request_id, [], finish_reason="error"))
        finally:
            self._tasks.pop(request_id, None)

    async def _pool(self, generation: Generation) -> None:
        request_id, prompt = generation.request_id, {"type": "token", "prompt_token_ids": generation.prompt_token_ids}
        params, lora = self._objects.pooling_params(generation), self._objects.lora_request(generation.lora)
        async for output in self._llm.encode(prompt, params, request_id, lora_request=lora):
            self._take(PlainOutput(request_id, [], finish_reason="stop", pooling_output=output.outputs.data))

    def _take(self, output: PlainOutput) -> None:
        self._outputs.append(output)
        if not self._flush_due:
            self._flush_due = True
            # Behind the tasks that this turn has still to resume.
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        outputs, self._outputs = self._outputs, []
        loads = self._loads[:]
        self._loads.clear()
        for load in loads[:-1]:
            self._listeners.outputs((), load)
        self._listeners.outputs(outputs, loads[-1] if loads else None)

    def abort(self, request_ids: Sequence[str]) -> None:
        """Stop requests: `generate` aborts what its task is cancelled in."""
        for request_id in request_ids:
            task = self._tasks.get(request_id)
            if task is not None and task is not asyncio.current_task():
                task.cancel()

    async def add_lora(self, adapter: LoraAdapter) -> bool:
        """Load an adapter's weights."""
        return bool(await self._llm.add_lora(self._objects.lora_request(adapter)))

    async def remove_lora(self, number: int) -> bool:
        """Drop an adapter's weights."""
        return bool(await self._llm.remove_lora(number))

    async def supported_tasks(self) -> tuple[str, ...]:
        """What the model does, in vLLM's words."""
        return tuple(await self._llm.get_supported_tasks())

    async def reset_prefix_cache(self) -> bool:
        """Forget cached prompts; False if running sequences hold some."""
        return bool(await self._llm.reset_prefix_cache())

    def shutdown(self) -> None:
        """End vLLM's processes."""
        self._llm.shutdown()


def plain_output(request_id: str, output: Any, generation: Generation, prompt: Any) -> PlainOutput:
    """A `RequestOutput` of the kind DELTA in the form of an engine core's output.

    Args:
        request_id: id of the request.
        output: output of `AsyncLLM.generate`.
        generation: the request.
        prompt: rows of its prompt.
    """
    completion = output.outputs[0]
    token_ids = list(completion.token_ids)
    sampled = None
    if completion.logprobs and token_ids:
        sampled = rows(completion.logprobs, token_ids, generation.params["logprobs"])
    return PlainOutput(
        request_id,
        token_ids,
        sampled,
        prompt,
        completion.finish_reason,
        completion.stop_reason,
        output.num_cached_tokens or 0,
        _events(output),
        kv_transfer_params=output.kv_transfer_params,
        spec_decode_metrics=getattr(completion, "spec_decode_metrics", None),
    )


async def prompt_rows(places: Sequence[Any], generation: Generation) -> tuple[Any, Any] | None:
    """Rows of a prompt from its second token on; None if there are none. Others have turns of the event loop meanwhile.

    Args:
        places: as in `rows`, for each token of the prompt.
        generation: the request.
    """
    if len(places) < 2:
        return None
    k = generation.params["prompt_logprobs"]
    ids, values = np.empty((len(places), 1 + k), np.int32), np.empty((len(places), 1 + k), np.float32)
    for start in range(1, len(places), _PLACES_AT_ONCE):
        part = slice(start, start + _PLACES_AT_ONCE)
        ids[part], values[part] = rows(places[part], generation.prompt_token_ids[part], k)
        await asyncio.sleep(0)
    return ids[1:], values[1:]


def rows(places: Sequence[Any], token_ids: Sequence[int], k: int) -> tuple[Any, Any]:
    """Token ids and log-probabilities, each of shape [places, 1 + k], from vLLM's mappings.

    Args:
        places: mapping for each token, from token id to an object with `logprob` and `rank`.
        token_ids: the tokens themselves.
        k: likeliest tokens asked for.
    """
    ids, values = [], []
    for token_id, place in zip(token_ids, places, strict=False):
        top = sorted((entry.rank, other, entry.logprob) for other, entry in place.items() if entry.rank is not None)
        ids.append([token_id, *(other for _, other, _ in top[:k])])
        values.append([place[token_id].logprob, *(value for _, _, value in top[:k])])
    return np.array(ids), np.array(values)


def _events(output: Any) -> list[_Event] | None:
    metrics = getattr(output, "metrics", None)
    queued, scheduled = getattr(metrics, "queued_ts", 0), getattr(metrics, "scheduled_ts", 0)
    return [_Event(1, queued), _Event(2, scheduled)] if queued and scheduled else None
