"""Client of vLLM's engine core: one message per step for all requests, without a task or a queue per request.

It is one level below `AsyncLLM` and not public, so it is used for the versions that were read, and only if the names
that it needs are there.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from openai_bls.core.manifest import EngineLoadError, first_line
from openai_bls_vllm.clients.async_llm import PlainOutput
from openai_bls_vllm.clients.media import INPUT_PROCESSOR, Expanded, MediaQueue, require_same
from openai_bls_vllm.clients.objects import Objects
from openai_bls_vllm.interface import Generation, Listeners, LoraAdapter
from openai_bls_vllm.module import Vllm

logger = logging.getLogger(__name__)

_CLIENT = "vllm.v1.engine.core_client.EngineCoreClient"
_METHODS = (
    "get_output_async",
    "add_request_async",
    "abort_requests_async",
    "reset_prefix_cache_async",
    "get_supported_tasks_async",
    "add_lora_async",
    "remove_lora_async",
    "shutdown",
)
_REQUEST_FIELDS = frozenset(
    {
        "request_id",
        "prompt_token_ids",
        "mm_features",
        "sampling_params",
        "pooling_params",
        "arrival_time",
        "lora_request",
        "cache_salt",
        "data_parallel_rank",
        "priority",
        "external_req_id",
    }
)
_OUTPUT_FIELDS = frozenset(
    {
        "request_id",
        "new_token_ids",
        "new_logprobs",
        "new_prompt_logprobs_tensors",
        "pooling_output",
        "kv_transfer_params",
        "finish_reason",
        "stop_reason",
    }
)


def missing_names(vllm: Vllm, *, images: bool = False) -> list[str]:
    """Names that the client needs and the installed vLLM does not have; empty if it can be used.

    Args:
        vllm: the installed package.
        images: the model takes images.
    """
    missing = []
    try:
        client = vllm.name(_CLIENT)
        missing += [f"EngineCoreClient.{name}" for name in _METHODS if not hasattr(client, name)]
        made = inspect.signature(client.make_async_mp_client).parameters
        missing += [f"make_async_mp_client({name})" for name in ("vllm_config", "executor_class", "log_stats")
                    if name not in made]  # fmt: skip
        for path, fields in (
            ("vllm.v1.engine.EngineCoreRequest", _REQUEST_FIELDS),
            ("vllm.v1.engine.EngineCoreOutput", _OUTPUT_FIELDS),
            ("vllm.v1.engine.EngineCoreOutputs", frozenset({"outputs", "scheduler_stats"})),
        ):
            has = set(vllm.name(path).__struct_fields__)
            missing += [f"{path.rpartition('.')[2]}.{name}" for name in sorted(fields - has)]
        vllm.name("vllm.v1.executor.Executor")
        if images and not hasattr(vllm.name(INPUT_PROCESSOR), "process_inputs"):
            missing.append("InputProcessor.process_inputs")
    except (EngineLoadError, AttributeError) as error:
        missing.append(first_line(error))
    return missing


class _Sent(NamedTuple):
    """A request with images whose first output has not come."""

    generation: Generation
    params: Any
    """`SamplingParams`, as no prompt with images is pooled."""
    again: bool
    """Its images were sent before, and the engine core had forgotten one."""


class CoreClient:
    """A `Client` over `AsyncMPClient`. Made on the event loop's thread; blocks it until the model is loaded.

    Args:
        vllm: the installed package.
        config: `VllmConfig`.
        images: the model takes images.
    """

    name = "core_client"

    def __init__(self, vllm: Vllm, config: Any, *, images: bool = False) -> None:
        self._objects = Objects(vllm)
        self._config = config
        self._request = vllm.name("vllm.v1.engine.EngineCoreRequest")
        self._client = vllm.name(_CLIENT).make_async_mp_client(
            vllm_config=config,
            executor_class=vllm.name("vllm.v1.executor.Executor").get_class(config),
            log_stats=True,
        )
        self._media = MediaQueue(vllm, config, self._expanded) if images else None
        self._expanding: dict[str, _Sent] = {}
        """Requests whose images are being expanded."""
        self._unwanted: set[str] = set()
        """Those of them that were aborted."""
        self._sent: dict[str, _Sent] = {}
        """Requests with images whose first output has not come."""
        self._backend = getattr(config.structured_outputs_config, "backend", None)
        self._calls: deque[Callable[[], Awaitable[Any]]] = deque()
        """Messages to send, in order."""
        self._sender: asyncio.Task[None] | None = None
        self._receiver: asyncio.Task[None] | None = None
        self._listeners: Listeners

    def start(self, listeners: Listeners) -> None:
        """Begin to read outputs."""
        self._listeners = listeners
        self._receiver = asyncio.get_running_loop().create_task(self._receive())

    async def _receive(self) -> None:
        on_outputs = self._listeners.outputs
        take = self._client.get_output_async
        try:
            while True:
                step = await take()
                outputs = self._with_known_images(step.outputs) if self._sent else step.outputs
                on_outputs(outputs, step.scheduler_stats)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._died(error)

    def _died(self, error: BaseException) -> None:
        self._calls.clear()
        self._listeners.death(error)

    def add(self, generations: Sequence[Generation]) -> None:
        """Start requests."""
        for generation in generations:
            try:
                # Before its images are expanded: what is expanded must reach the engine core.
                params = self._params(generation)
            except ValueError as error:
                self._listeners.refused(generation.request_id, first_line(error))
                continue
            if generation.media is not None and self._media is not None:
                self._expand(self._media, _Sent(generation, params, again=False))
            else:
                self._add(generation, params)
        self._send_soon()

    def _add(self, generation: Generation, params: Any, features: Any = None) -> None:
        request = self._engine_core_request(generation, params, features)
        self._calls.append(lambda: self._client.add_request_async(request))

    def _expand(self, media: MediaQueue, sent: _Sent) -> None:
        self._expanding[sent.generation.request_id] = sent
        media.put(sent.generation)

    def _expanded(self, generation: Generation, found: Expanded | BaseException) -> None:
        """Start a request whose images are expanded."""
        request_id = generation.request_id
        sent = self._expanding.pop(request_id)
        wanted = request_id not in self._unwanted
        self._unwanted.discard(request_id)
        if isinstance(found, Expanded):
            # One that is not wanted any more, too: vLLM sends an image to the engine core once, and this was the time.
            self._add(generation, sent.params, found.features)
            try:
                require_same(generation, found.prompt_token_ids)
            except RuntimeError as error:
                self._refuse(request_id, error)
                wanted = False
            if wanted:
                self._sent[request_id] = sent
            else:
                self.abort([request_id])
            self._send_soon()
        elif wanted:
            self._refuse(request_id, found)

    def _with_known_images(self, outputs: Sequence[Any]) -> Sequence[Any]:
        """The outputs but those of requests whose images the engine core has forgotten, which are sent once more."""
        left = []
        for output in outputs:
            sent = self._sent.pop(output.request_id, None)
            # vLLM has this field from 0.32 on; in older versions no image is forgotten.
            if sent is None or not getattr(output, "mm_cache_miss_hashes", None):
                left.append(output)
                continue
            assert self._media is not None
            self._media.forget()
            if sent.again:
                left.append(output)
            else:
                self._expand(self._media, sent._replace(again=True))
        return left

    def _refuse(self, request_id: str, error: BaseException) -> None:
        # What the processor of a model does not take, an image of 1 pixel by 300, say, is a ValueError.
        if isinstance(error, ValueError):
            self._listeners.refused(request_id, first_line(error))
            return
        logger.error("vLLM failed to read the images of a request", exc_info=error)
        self._listeners.outputs([PlainOutput(request_id, [], finish_reason="error")], None)

    def _params(self, generation: Generation) -> Any:
        if generation.pooling:
            params = self._objects.pooling_params(generation)
            # What the input processor does: the model's defaults.
            params.verify(self._config.model_config)
            return params
        params = self._objects.sampling_params(generation)
        if params.structured_outputs is not None:
            # The input processor would set it, after a check that needs a tokenizer in this process.
            params.structured_outputs._backend = self._backend
        return params

    def _engine_core_request(self, generation: Generation, params: Any, features: Any) -> Any:
        return self._request(
            request_id=generation.request_id,
            external_req_id=generation.request_id,
            prompt_token_ids=generation.prompt_token_ids,
            mm_features=features,
            sampling_params=None if generation.pooling else params,
            pooling_params=params if generation.pooling else None,
            arrival_time=time.time(),
            lora_request=self._objects.lora_request(generation.lora),
            cache_salt=None,
            data_parallel_rank=None,
            priority=generation.priority,
        )

    def abort(self, request_ids: Sequence[str]) -> None:
        """Stop requests."""
        ids = []
        for request_id in request_ids:
            self._sent.pop(request_id, None)
            if request_id in self._expanding:
                # It is aborted once it has started.
                self._unwanted.add(request_id)
            else:
                ids.append(request_id)
        if not ids:
            return
        self._calls.append(lambda: self._client.abort_requests_async(ids))
        self._send_soon()

    def _send_soon(self) -> None:
        if self._calls and self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        try:
            while self._calls:
                await self._calls.popleft()()
        except Exception as error:
            # The receiver hears of most deaths first; a message that cannot be sent is one all the same.
            self._died(error)
        finally:
            self._sender = None

    async def add_lora(self, adapter: LoraAdapter) -> bool:
        """Load an adapter's weights."""
        return bool(await self._client.add_lora_async(self._objects.lora_request(adapter)))

    async def remove_lora(self, number: int) -> bool:
        """Drop an adapter's weights."""
        return bool(await self._client.remove_lora_async(number))

    async def supported_tasks(self) -> tuple[str, ...]:
        """What the model does, in vLLM's words."""
        return tuple(await self._client.get_supported_tasks_async())

    async def reset_prefix_cache(self) -> bool:
        """Forget cached prompts; False if running sequences hold some."""
        return bool(await self._client.reset_prefix_cache_async())

    def shutdown(self) -> None:
        """End vLLM's processes."""
        if self._receiver is not None:
            self._receiver.cancel()
        if self._media is not None:
            self._media.close()
        self._client.shutdown()
