"""transformers' continuous batching, behind a small face: the only module that touches it.

Written against transformers 5.17 to 5.23, whose continuous batching is young and moves. What is used of it:

- `ContinuousBatchingManager`, subclassed for a call between steps; its generation loop runs on a thread of ours;
- `OutputRouter`, replaced, so that a step's outputs arrive in one call on that thread;
- `ContinuousBatchingLogitsProcessorList`, replaced by our own sampler;
- the FIFO scheduler, subclassed to mark cancelled sequences, since a step may be in flight that holds them.

The sampler writes infinity over the token it chose and leaves the choice to the manager's argmax. Greedy rows keep
their logits, so they get what `generate` gets.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching import continuous_api
from transformers.generation.continuous_batching.scheduler import SCHEDULER_MAPPING, FIFOScheduler

from openai_bls.engine.sampling import Plan, choose, random_bits

_SCHEDULER = "openai_bls"
_ROWS = 5  # temperature, top_p, top_k, min_p, random bits: one int32 row each in the manager's argument storage


class SequenceOutput(Protocol):
    """What the manager delivers of a sequence after a step."""

    request_id: str
    generated_tokens: list[int]
    """All so far, stop token included."""
    error: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Sampling:
    """How one sequence's tokens are chosen."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    bad_words: tuple[tuple[int, ...], ...] = ()

    @property
    def row(self) -> tuple[float, float, float]:
        """The float parameters in the order of the argument rows."""
        return (self.temperature, self.top_p, self.min_p)


@dataclasses.dataclass(frozen=True, slots=True)
class BatchingConfig:
    """Sizes and switches."""

    max_batch_size: int
    max_num_tokens: int
    """Of one forward pass."""
    page_size: int
    """Tokens of a page of the KV cache, the unit in which prefixes are shared."""
    max_tokens_in_kv_cache: int
    """0: as many as fit into `free_memory_fraction`."""
    free_memory_fraction: float
    prefix_sharing: bool
    cuda_graphs: bool


# Warming up CUDA graphs makes sequences of its own.
_WARM_UP = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)


class _Sampler:
    """Stands where the manager expects its list of logits processors."""

    do_processing = True
    tensors_required = _ROWS

    def __init__(self, *, static: bool) -> None:
        self._static = static
        self._plan = Plan(sampled=True, top_k=1, top_p=True, min_p=True, static=True)
        self._bans: list[tuple[int, list[int]]] = []

    def check_kwargs(self, kwargs: dict[str, Any]) -> None:
        """Nothing to check: admission did."""

    def fill_defaults(self, storage: torch.Tensor) -> None:
        """Rows without a request are greedy."""
        storage.zero_()

    def prepare_tensor_args(self, requests_in_batch: Sequence[Any], arg_storage: torch.Tensor) -> torch.Tensor:
        """Put the parameters of a step's requests into `arg_storage`, int32 [5, columns], before the step."""
        states = [item.state for item in requests_in_batch if item.has_new_token]
        params: list[Sampling] = [state.logit_processor_kwargs.get("sampling", _WARM_UP) for state in states]
        self._bans = [
            (row, banned)
            for row, (state, p) in enumerate(zip(states, params, strict=True))
            if p.bad_words and (banned := _banned(p.bad_words, state))
        ]
        drawn = [p for p in params if p.temperature > 0]
        if not self._static:
            self._plan = Plan(
                sampled=bool(drawn),
                top_k=max((p.top_k for p in drawn), default=0),
                top_p=any(p.top_p < 1 for p in drawn),
                min_p=any(p.min_p > 0 for p in drawn),
            )
            if not drawn:
                return arg_storage
        count = len(params)
        rows = np.empty((_ROWS, count), np.int32)
        floats = np.array([p.row for p in params], np.float32).reshape(count, 3).T.copy()
        rows[:2] = floats.view(np.int32)[:2]
        rows[2] = [p.top_k for p in params]
        rows[3] = floats.view(np.int32)[2]
        # By now the offset counts this step's tokens too: it is the index of the token about to be chosen, however
        # the prompt was split, shared or recomputed.
        rows[4] = random_bits(
            np.array([p.seed for p in params], np.uint64),
            np.array([state.position_offset for state in states], np.uint64),
        )
        arg_storage[:, :count].copy_(torch.from_numpy(rows))
        return arg_storage

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, args: torch.Tensor) -> torch.Tensor:
        """Mark the chosen tokens in `scores`, [rows, vocabulary]."""
        for row, banned in self._bans:
            scores[row, banned] = -torch.inf
        if not self._plan.sampled:
            return scores
        args = args[:, : scores.size(0)].contiguous()
        floats = args.view(torch.float32)
        chosen = choose(scores, floats[0], floats[1], args[2], floats[3], args[4], self._plan)
        return scores.scatter_(1, chosen, torch.inf)


def _banned(words: Sequence[tuple[int, ...]], state: Any) -> list[int]:
    """The tokens that would complete a forbidden word, given what the request has so far."""
    longest = max(len(word) for word in words) - 1
    tail: tuple[int, ...] = ()
    if longest:
        generated = state.generated_tokens[-longest:]
        missing = longest - len(generated)
        tail = (*(state.initial_tokens[-missing:] if missing else ()), *generated)
    return [w[-1] for w in words if len(w) - 1 <= len(tail) and w[:-1] == tail[len(tail) - len(w) + 1 :]]


class _Router(continuous_api.OutputRouter):  # type: ignore[misc]
    """Hands outputs straight to us, on the manager's thread."""

    def __init__(self, on_outputs: Callable[[Sequence[SequenceOutput]], None]) -> None:
        super().__init__()
        self._on_outputs = on_outputs

    def deliver(self, output: SequenceOutput) -> None:
        """One output; failures come this way."""
        self._on_outputs([output])

    def deliver_batch(self, outputs: list[SequenceOutput]) -> None:
        """All outputs of a step."""
        self._on_outputs(outputs)


class _Scheduler(FIFOScheduler):  # type: ignore[misc]
    """FIFO, with cancelled sequences marked as finished.

    With steps in flight, one that holds a cancelled sequence is still to be accounted for; unmarked, it would touch
    pages that are no longer the sequence's.
    """

    def clear_cancelled_requests(self) -> Any:
        """Drop them; returns their states."""
        states = super().clear_cancelled_requests()
        for state in states or ():
            state._status = continuous_api.RequestStatus.FINISHED
        return states


class _Manager(continuous_api.ContinuousBatchingManager):  # type: ignore[misc]
    """The manager, with a call between steps."""

    before_step: Callable[[], None]

    def _generation_loop_body(self, *args: Any, **kwargs: Any) -> bool:
        self.before_step()
        return bool(super()._generation_loop_body(*args, **kwargs))


class ContinuousBatcher:
    """Generates for many sequences at once on one thread, which is the caller of `run`.

    Only `wake`, `stop` and the counts may be used from other threads; `add` and `cancel` belong into `before_step`.
    """

    def __init__(
        self,
        model: Any,
        config: BatchingConfig,
        before_step: Callable[[], None],
        on_outputs: Callable[[Sequence[SequenceOutput]], None],
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
        SCHEDULER_MAPPING[_SCHEDULER] = _Scheduler
        fields = {field.name for field in dataclasses.fields(ContinuousBatchingConfig)}
        page_field = "page_size" if "page_size" in fields else "block_size"
        on_gpu = model.device.type != "cpu"
        pages = -(-config.max_tokens_in_kv_cache // config.page_size)
        settings: dict[str, Any] = {
            page_field: config.page_size,
            "num_blocks": pages or None,
            "max_batch_tokens": config.max_num_tokens,
            "max_requests_per_batch": config.max_batch_size,
            "max_memory_percent": config.free_memory_fraction,
            "allow_block_sharing": config.prefix_sharing,
            "use_cuda_graph": config.cuda_graphs and on_gpu,
            "use_async_batching": config.cuda_graphs and on_gpu,
            "scheduler_type": _SCHEDULER,
            "auto_switch_to_flash": False,
        }
        self._manager = _Manager(
            model=model,
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1),
            continuous_batching_config=ContinuousBatchingConfig(
                **{name: value for name, value in settings.items() if name in fields}
            ),
        )
        self._manager.before_step = before_step
        self._manager.logit_processor = _Sampler(static=config.cuda_graphs and on_gpu)
        self._manager.output_router = _Router(on_outputs)
        self._manager.current_batch = 0
        self._page_size = config.page_size
        self._wake: Any = getattr(self._manager, "_wake_up_loop", None) or self._manager._has_new_requests
        # Makes the batch processor, hence the cache, here and now, where a failure can still be told to the caller.
        with torch.no_grad():
            self._manager.warmup()

    @property
    def capacity(self) -> int:
        """Tokens that the KV cache holds."""
        return int(self._manager.batch_processor.cache.num_blocks) * self._page_size

    @property
    def steps(self) -> int:
        """Forward passes so far."""
        return int(self._manager.current_batch)

    def load(self) -> tuple[int, int, float]:
        """(running, waiting, share of the KV cache in use): a rough look from any thread."""
        processor = self._manager.batch_processor
        if processor is None:
            return 0, 0, 0.0
        scheduler = processor.scheduler
        waiting = len(scheduler.waiting_requests) + self._manager.input_queue.qsize()
        return len(scheduler.active_requests), waiting, _cache_usage(processor.cache)

    def add(
        self,
        key: str,
        prompt_token_ids: list[int],
        max_tokens: int,
        stop_token_ids: Sequence[int],
        sampling: Sampling,
    ) -> None:
        """Queue a sequence under a key never used before."""
        self._manager.add_request(
            prompt_token_ids,
            request_id=key,
            max_new_tokens=max_tokens,
            streaming=True,
            eos_token_id=list(stop_token_ids),
            sampling=sampling,
        )

    def cancel(self, key: str) -> None:
        """Drop a sequence before the next step."""
        self._manager.cancel_request(key)

    def wake(self) -> None:
        """End an idle wait."""
        self._wake.set()

    def run(self) -> BaseException | None:
        """Generate until `stop`; returns the error that ended it earlier, if one did.

        By then every sequence still live was reported as failed through `on_outputs`.
        """
        self._manager._generation_thread = None
        self._manager._run_generation_loop()
        error: BaseException | None = self._manager.background_thread_status.fatal_error
        return error

    def stop(self) -> None:
        """Make `run` return after the step at hand."""
        status = self._manager.background_thread_status
        status.request_stop(status.HARD_STOP, 0)
        self._wake.set()

    def free(self) -> None:
        """Let go of the KV cache and the model; only after `run` has returned."""
        self._manager.batch_processor = None
        self._manager.model = None


def _cache_usage(cache: Any) -> float:
    """Share of the cache that sequences hold; pages kept in case their prefix comes again are free."""
    if not hasattr(cache, "compute_free_capacity"):  # 5.17
        return 1.0 - float(cache.get_num_free_blocks()) / float(cache.num_blocks)
    kept = sum(
        len(allocator.ledger.cached_blocks) * allocator.bytes_per_block for allocator in cache.cache_allocators.values()
    )
    used = 1.0 - cache.compute_free_capacity() - kept / (cache.num_sectors * cache.bytes_per_sector)
    return min(1.0, max(0.0, float(used)))
