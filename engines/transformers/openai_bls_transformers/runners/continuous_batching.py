"""transformers' continuous batching behind a small interface; the only module that imports its manager.

Written against transformers 5.17 to 5.24, whose continuous batching is young and moves. Used of it are:

- `ContinuousBatchingManager`, subclassed for a call between steps; its generation loop runs on a thread of ours;
- `OutputRouter`, replaced, so that a step's outputs arrive in one call on that thread;
- `ContinuousBatchingLogitsProcessorList`, replaced by `sampler`;
- the scheduler, the preparation of steps and the state of a sequence, subclassed for speed in `scheduler`;
- the model runner, replaced by `cuda_graph_runner`.

When steps overlap, a step is launched before the results of the one before it are looked at: after the whole step, or,
if a grammar needs them, between its forward pass and its sampling, or, if a draft needs them, before it is prepared
(`_Manager.update_last_step`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching import continuous_api
from transformers.generation.continuous_batching.scheduler import SCHEDULER_MAPPING

from openai_bls.core.engine import EngineStats, PrefixCacheError
from openai_bls.engines.kv_events.events import Event
from openai_bls_transformers import cache_argument
from openai_bls_transformers.cache_memory import used_share
from openai_bls_transformers.fp8_numbers import FP8
from openai_bls_transformers.gpu import paged_attention
from openai_bls_transformers.model.image_inputs import PromptImages
from openai_bls_transformers.model.lora_layers import layers_of
from openai_bls_transformers.runners.cuda_graph_runner import CudaGraphRunner
from openai_bls_transformers.runners.image_rows import install_positions
from openai_bls_transformers.runners.prefix_cache import can_share_by_adapter, note_pieces, share
from openai_bls_transformers.runners.prefix_cache_events import PrefixCacheEvents
from openai_bls_transformers.runners.prompt_embeddings import ImageNumbers, PromptEmbeddings
from openai_bls_transformers.runners.runner import (
    NO_LOAD,
    BatchingConfig,
    BeforeStep,
    OnOutputs,
    Sampling,
    SequenceOutput,
)
from openai_bls_transformers.runners.sampler import Sampler
from openai_bls_transformers.runners.scheduler import Scheduler, SequenceState, install_fast_path
from openai_bls_transformers.runners.step_budget import LEAST_PROMPT_TOKENS, StepBudget
from openai_bls_transformers.runners.step_clock import StepClock, clocked
from openai_bls_transformers.speculation.speculation import Speculator

_SCHEDULER = "openai_bls"
# From 5.24 on the loop is told the inference mode of the thread that starts it; ours starts it in none.
_LOOP_ARGUMENTS = {
    name: False
    for name in inspect.signature(continuous_api.ContinuousBatchingManager._run_generation_loop).parameters
    if name == "use_inference_mode"
}


class _Router(continuous_api.OutputRouter):  # type: ignore[misc]
    """Output router that calls one listener, on the manager's thread."""

    def __init__(self, on_outputs: OnOutputs) -> None:
        super().__init__()
        self._on_outputs = on_outputs

    def deliver(self, output: SequenceOutput) -> None:
        """One output; failures come this way."""
        self._on_outputs([output])

    def deliver_batch(self, outputs: list[SequenceOutput]) -> None:
        """All outputs of a step."""
        self._on_outputs(outputs)


class _Manager(continuous_api.ContinuousBatchingManager):  # type: ignore[misc]
    """The manager, with a call between steps, and with the update of a step possible while the next one runs."""

    before_step: Callable[[], None]
    make_runner: Callable[..., Any] | None = None
    cache_changes: Mapping[str, Any] | None = None
    """Arguments of its cache that are not the model's."""
    _update_batch: Callable[[], None]
    speculator: Speculator | None = None
    _in_flight = 0
    """Steps that are launched and not looked at."""
    _clock: StepClock | None = None

    def _generation_loop_body(self, batch_processor: Any, bootstrapping: bool) -> bool:
        if self._clock is not None:
            self._clock.wait()
        self.before_step()
        if self.speculator is not None:
            if self._in_flight and self.speculator.waits(batch_processor.scheduler):
                self.update_last_step()
                # The next step gets its tokens from the host.
                ios = batch_processor.inputs_and_outputs
                ios.io_pairs[1 - ios.current_pair].host_io.req_id_to_new_token_position = {}
            self.speculator.step_in_flight = self._in_flight > 0
        return bool(super()._generation_loop_body(batch_processor, bootstrapping))

    def _generation_step(self) -> None:
        if self._clock is not None:
            ios = self.batch_processor.inputs_and_outputs
            host = ios.io_pairs[ios.current_pair].host_io
            self._clock.launched(host.use_block_table, host.num_q_tokens)
        super()._generation_step()
        self._in_flight += 1

    def update_last_step(self) -> None:
        """Wait for the tokens of the step before the one being launched, and update its sequences now, not after."""
        if not self._in_flight:
            return
        ios = self.batch_processor.inputs_and_outputs
        ios.current_pair = 1 - ios.current_pair
        self._update_batch()
        ios.current_pair = 1 - ios.current_pair
        self._in_flight -= 1

    def _update_unless_done(self) -> None:
        if self._in_flight > self.batch_processor.use_async_batching:
            self._update_batch()
            self._in_flight -= 1

    def _create_batch_processor(self) -> Any:
        is_new = self.batch_processor is None
        with _caches(self.cache_changes or {}):
            processor = super()._create_batch_processor()
        if not is_new and self.model.device.type == "cuda":
            # It was reset, by another stream than the one that the first step's inputs come by.
            torch.cuda.synchronize(self.model.device)
        if is_new:
            cache_argument.pass_on(processor.cache, str(self.model.config._attn_implementation))
            install_fast_path(processor)
            if self.speculator is not None:
                self.speculator.install(processor)
            self._update_batch = processor.update_batch
            processor.update_batch = self._update_unless_done
            if processor.use_async_batching:
                self._clock = clocked(processor.inputs_and_outputs)
        if is_new and self.make_runner is not None:
            processor.model_runner = self.make_runner(
                logit_processor=processor.logit_processor,
                cb_config=processor.cb_config,
                inputs_and_outputs=processor.inputs_and_outputs,
                cache=processor.cache,
                do_sample=False,
                return_logprobs=False,
            )
        return processor


@contextlib.contextmanager
def _caches(changes: Mapping[str, Any]) -> Iterator[None]:
    """Let the manager, which gives its cache the model's type and configuration, give it others."""
    made = continuous_api.PagedAttentionCache
    if changes:
        continuous_api.PagedAttentionCache = lambda **settings: made(**settings | changes)
    try:
        yield
    finally:
        continuous_api.PagedAttentionCache = made


def _cache_changes(model: Any, config: BatchingConfig) -> dict[str, Any]:
    """Arguments of the cache that are not the model's."""
    changes: dict[str, Any] = {"dtype": FP8} if config.kv_cache_dtype == "fp8" else {}
    if config.paged:
        changes["config"] = paged_attention.with_full_attention(model.config.get_text_config())
    return changes


class ContinuousBatcher:
    """The runner that batches sequences of any lengths in every step, over one paged cache."""

    def __init__(
        self,
        model: Any,
        config: BatchingConfig,
        before_step: BeforeStep,
        on_outputs: OnOutputs,
    ) -> None:
        """Allocate the KV cache.

        Args:
            model: a transformers causal language model, on its device.
            config: sizes and switches.
            before_step: called before each step and, when idle, after each wake-up.
            on_outputs: called with a step's outputs, or with failures.

        Raises:
            MemoryError: the sizes do not fit.
            ValueError: the model cannot be batched this way.
        """
        SCHEDULER_MAPPING[_SCHEDULER] = Scheduler
        lora = layers_of(model)
        fields = {field.name for field in dataclasses.fields(ContinuousBatchingConfig)}
        page_field = "page_size" if "page_size" in fields else "block_size"
        on_gpu = model.device.type != "cpu"
        pages = -(-config.max_tokens_in_kv_cache // config.page_size)
        speculator = None if config.speculation is None else Speculator(config.speculation)
        # Of a step; without drafts as many as sequences.
        rows = max(config.max_batch_size, 0 if speculator is None else 1 + speculator.config.num_tokens)
        settings: dict[str, Any] = {
            page_field: config.page_size,
            "num_blocks": pages or None,
            "max_batch_tokens": config.max_num_tokens,
            "max_requests_per_batch": rows,
            "max_memory_percent": config.free_memory_fraction,
            "allow_block_sharing": config.prefix_sharing
            and (can_share_by_adapter() or not (config.images or lora is not None)),
            "use_cuda_graph": False,
            "use_async_batching": config.async_batching,
            "scheduler_type": _SCHEDULER,
            "auto_switch_to_flash": False,
        }
        if config.paged or config.cuda_graphs:
            # Page tables for sequences of any length that fits.
            settings["max_blocks_per_request"] = -(-config.max_request_tokens // config.page_size)
        self._manager = _Manager(
            model=model,
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1),
            continuous_batching_config=ContinuousBatchingConfig(
                **{name: value for name, value in settings.items() if name in fields}
            ),
        )
        self._manager.before_step = before_step
        self._manager.speculator = speculator
        sampler = Sampler(on_gpu=on_gpu, lora=lora, speculator=speculator)
        self._manager.logit_processor = sampler
        self._manager.make_runner = functools.partial(
            CudaGraphRunner,
            sampler,
            self._manager.update_last_step,
            graphs=config.cuda_graphs,
            paged=config.paged,
            fail=self._fail if config.images else None,
        )
        self._manager.cache_changes = _cache_changes(model, config)
        self._manager.output_router = _Router(on_outputs)
        self._manager.current_batch = 0
        self._page_size = config.page_size
        self._wake: Any = getattr(self._manager, "_wake_up_loop", None) or self._manager._has_new_requests
        # Makes the batch processor, hence the cache, here and now, where a failure can still be told to the caller.
        self._manager.batch_processor = self._manager._create_batch_processor()
        with torch.no_grad():
            self._manager.warmup()
        processor = self._manager.batch_processor
        processor.scheduler.max_requests_per_batch = config.max_batch_size
        processor.scheduler.speculator = speculator
        times = getattr(processor.model_runner, "step_times", None)
        if times is not None and config.max_step_seconds:
            processor.scheduler.step_budget = StepBudget(times, config.max_step_seconds)
        elif not on_gpu:
            # A CPU's steps are longer by each token, and every sequence that decodes waits for the whole step.
            processor.scheduler.prompt_tokens_beside = LEAST_PROMPT_TOKENS
        self._image_numbers = ImageNumbers()
        images_of = processor.scheduler.images_of
        if config.images:
            install_positions(processor)
        share(processor.cache, by_adapter=lora is not None, images_of=images_of if config.images else None)
        if processor.use_async_batching:
            note_pieces(processor.inputs_and_outputs, processor.cache)
        self._kv_events = PrefixCacheEvents(processor.cache, images_of) if config.kv_events else None

    @property
    def capacity(self) -> int:
        """Tokens that the KV cache holds."""
        return int(self._manager.batch_processor.cache.num_blocks) * self._page_size

    def stats(self) -> EngineStats:
        """The load and the counts so far; nothing once the cache is freed."""
        processor, speculator = self._manager.batch_processor, self._manager.speculator
        if processor is None:
            return NO_LOAD
        scheduler = processor.scheduler
        return EngineStats(
            running=len(scheduler.active_requests),
            waiting=len(scheduler.waiting_requests) + self._manager.input_queue.qsize(),
            kv_cache_usage=used_share(processor.cache),
            steps=int(self._manager.current_batch),
            generated_tokens=0,
            draft_tokens=0 if speculator is None else speculator.draft_tokens,
            accepted_draft_tokens=0 if speculator is None else speculator.accepted_tokens,
            kv_blocks=processor.cache.num_blocks,
            kv_block_size=self._page_size,
        )

    def add(
        self,
        key: str,
        prompt_token_ids: list[int],
        max_tokens: int,
        stop_token_ids: Sequence[int],
        sampling: Sampling,
        images: PromptImages | None = None,
    ) -> None:
        """Queue a sequence under a key never used before."""
        state = SequenceState(
            request_id=key,
            initial_tokens=list(prompt_token_ids),
            max_new_tokens=max_tokens,
            eos_token_id=list(stop_token_ids),
            streaming=True,
            logit_processor_kwargs={"sampling": sampling},
        )
        if images is not None:
            state.images = PromptEmbeddings(self._manager.model, prompt_token_ids, images, self._image_numbers)
        self._manager.input_queue.put(state)

    def _fail(self, state: Any, error: Exception) -> None:
        """End a sequence that is a part of a step."""
        self._manager.output_router.fail_and_deliver(state, error)
        self._manager.batch_processor.scheduler.set_request_cancellation(state.request_id)

    def cancel(self, key: str) -> None:
        """Drop a sequence before the next step."""
        self._manager.cancel_request(key)

    def reset_prefix_cache(self) -> bool:
        """Give the pages back that are kept for prompts to come."""
        cache = self._manager.batch_processor.cache
        if not cache.allow_block_sharing:
            return True
        if not hasattr(cache, "evict_cached_blocks"):
            raise PrefixCacheError("the installed transformers cannot reset its prefix cache: reload the model")
        cache.evict_cached_blocks()
        is_empty = not any(allocator.ledger.hash_to_block for allocator in cache.cache_allocators.values())
        if is_empty and self._kv_events is not None:
            self._kv_events.cleared()
        return is_empty

    def take_kv_events(self, adapter_name: Callable[[int], str]) -> list[Event]:
        """Events of the prefix cache since the last call."""
        return [] if self._kv_events is None else self._kv_events.take(adapter_name)

    def wake(self) -> None:
        """End an idle wait."""
        self._wake.set()

    def run(self) -> BaseException | None:
        """Generate until `stop`; returns the error that ended it earlier, if one did.

        After an error every live sequence is reported as failed through `on_outputs` before it returns.
        """
        self._manager._generation_thread = None
        self._manager._run_generation_loop(**_LOOP_ARGUMENTS)
        error: BaseException | None = self._manager.background_thread_status.fatal_error
        return error

    def stop(self) -> None:
        """Make `run` return after the current step."""
        status = self._manager.background_thread_status
        status.request_stop(status.HARD_STOP, 0)
        self._wake.set()

    def free(self) -> None:
        """Let go of the KV cache and the model; only after `run` has returned."""
        self._manager.batch_processor = None
        self._manager.model = None
