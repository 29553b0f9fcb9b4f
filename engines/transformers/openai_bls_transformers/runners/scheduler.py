"""Scheduler with a fast path for steps in which all sequences decode, and a limit for those that take in prompts.

With hundreds of sequences a step takes the GPU a few milliseconds, and transformers' bookkeeping for it takes longer:
per sequence it looks up the pages, checks budgets, and copies the output. Nearly all steps only decode, and take the
fast path. It knows the paged cache of transformers up to 5.24 and is off for caches that are built otherwise.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from transformers.generation.continuous_batching.input_outputs import ContinuousBatchingAsyncIOs
from transformers.generation.continuous_batching.requests import (
    FutureRequestState,
    RequestState,
    RequestStatus,
)
from transformers.generation.continuous_batching.scheduler import FIFOScheduler

from openai_bls_transformers.runners.prefix_cache import evict, release_last_page_first
from openai_bls_transformers.runners.prompt_embeddings import PromptEmbeddings
from openai_bls_transformers.runners.step_budget import StepBudget
from openai_bls_transformers.runners.step_inputs import StepInputs
from openai_bls_transformers.speculation.speculation import Speculator


class SequenceState(RequestState):  # type: ignore[misc]
    """A sequence that is its own output, valid until the next step."""

    cached_tokens = 0
    """Prompt tokens found in the prefix cache."""
    scheduled_at: float | None = None
    """`time.monotonic()` of its first place in a step."""
    images: PromptEmbeddings | None = None
    """Embeddings of its images, if it has any."""

    def create_equivalent_initial_request(self) -> SequenceState:
        """The sequence that begins again in its place after it was preempted, with its output in the prompt."""
        again = SequenceState(**vars(super().create_equivalent_initial_request()))
        again.scheduled_at, again.images = self.scheduled_at, self.images
        return again

    def to_generation_output(self) -> Any:
        """The sequence itself; a copy if it was preempted and restarted with its output as a part of the prompt."""
        return super().to_generation_output() if self._true_initial_tokens else self


def supports_fast_path(cache: Any) -> bool:
    """True if `cache` is built as the fast path expects, with page tables for its one kind of layers."""
    allocators = getattr(cache, "cache_allocators", None)
    return (
        allocators is not None
        and list(allocators) == ["full_attention"]
        and hasattr(allocators["full_attention"], "block_physical_stride")
        and getattr(cache, "max_decode_fast_path_length", 0) > 0
    )


class Scheduler(FIFOScheduler):  # type: ignore[misc]
    """Scheduler with the fast path for decoding steps, and with cancelled sequences marked as finished.

    It is first come, first served, but for short prompts on a GPU, which may overtake long ones (`step_budget`).

    When steps overlap, the results of a step that holds a cancelled sequence are still to come; unmarked, it would
    touch pages that are no longer the sequence's.
    """

    step_budget: StepBudget | None = None
    """Limit of the steps that take prompts in beside sequences that decode."""
    prompt_tokens_beside: int | None = None
    """Most prompt tokens of a step beside sequences that decode, where no step times are known; None is no limit."""
    speculator: Speculator | None = None
    """Drafts of sequences that decode."""

    def images_of(self, request_id: str) -> PromptEmbeddings | None:
        """Images of a sequence that has not ended."""
        state = self.active_requests.get(request_id) or self.waiting_requests.get(request_id)
        return getattr(state, "images", None)

    def clear_cancelled_requests(self) -> Any:
        """Drop cancelled sequences; returns their states."""
        states = super().clear_cancelled_requests()
        for state in states or ():
            state._status = RequestStatus.FINISHED
        return states

    def finish_request(self, request_id: str) -> None:
        """Free a sequence's pages, or keep them in the prefix cache."""
        release_last_page_first(self.cache, request_id)
        super().finish_request(request_id)

    def _try_to_meet_safety_margin(self) -> bool:
        """True if there is room for prompts; cached pages are evicted for it."""
        evict(self.cache, self.safety_margin)
        self.cache.pool.try_to_free_sectors()
        return bool(self.cache.compute_free_capacity() >= self.safety_margin)

    def _infer_request_tokens(self, state: Any, *args: Any) -> Any:
        """The tokens that a sequence wants processed; here its prompt is looked up in the prefix cache."""
        before = state.position_offset
        tokens = super()._infer_request_tokens(state, *args)
        if state.position_offset != before and not state._true_initial_tokens:
            state.cached_tokens = state.position_offset - before
        return tokens

    def _schedule_request(self, state: Any, *args: Any) -> None:
        """Give a sequence a place in the next step."""
        if state.scheduled_at is None:
            state.scheduled_at = time.monotonic()
        super()._schedule_request(state, *args)

    def schedule_batch(self, token_budget: int, cache_budget: int) -> Any:
        """The sequences of the next step; see the original."""
        if self.speculator is not None:
            self.speculator.propose(self)
        if self.step_budget is not None:
            self.step_budget.count_step()
        scheduled = self._all_decoding(token_budget)
        if scheduled is None:
            step = super().schedule_batch(self._limited(token_budget), cache_budget)
            if self.speculator is not None:
                self.speculator.confirm(self.active_requests.values(), step[0])
            return step
        self.starved_requests: list[Any] = []
        return scheduled, True, len(scheduled), 0

    def _process_candidates(self, candidates: list[Any], *args: Any) -> Any:
        """Places in the next step, in the order of `candidates`: those that decode come first."""
        if self.step_budget is not None:
            decoding = sum(state._status is RequestStatus.DECODING for state in candidates)
            candidates[decoding:] = self._in_order(self.step_budget, candidates[decoding:])
        return super()._process_candidates(candidates, *args)

    def _in_order(self, budget: StepBudget, prompts: list[Any]) -> list[Any]:
        """Sequences that wait for their first token, after those that have had it and were preempted."""
        tokens = sum(len(state.remaining_prefill_tokens) for state in prompts)

        def due(state: Any) -> float:
            if state._true_initial_tokens or state.is_cpu_offloaded:
                return 0.0
            return float(state.created_time) + budget.overtaken(len(state.remaining_prefill_tokens), tokens)

        return sorted(prompts, key=due)

    def _limited(self, token_budget: int) -> int:
        """`token_budget`, or less if sequences decode beside the prompts, or several prompts wait for each other."""
        if self.step_budget is None and self.prompt_tokens_beside is None:
            return token_budget
        prefilling = [state for state in self.active_requests.values() if state._status is not RequestStatus.DECODING]
        if len(prefilling) == len(self.active_requests):
            several = len(prefilling) + len(self.waiting_requests) > 1
            return min(token_budget, self.step_budget.largest) if several and self.step_budget else token_budget
        decoding = sum(
            len(state.tokens_to_process)
            for state in self.active_requests.values()
            if state._status is RequestStatus.DECODING
        )
        if self.step_budget is None:
            return min(token_budget, decoding + (self.prompt_tokens_beside or 0))
        prompts = self._in_order(self.step_budget, [*prefilling, *self.waiting_requests.values()])
        tokens = sum(len(state.remaining_prefill_tokens) for state in prompts)
        past = prompts[0].position_offset if prompts else 0
        longest = max((len(state.initial_tokens) for state in prompts), default=0)
        return min(token_budget, self.step_budget.tokens(decoding, len(prompts), tokens, past, longest))

    def _all_decoding(self, token_budget: int) -> list[Any] | None:
        """A step of all active sequences, if each decodes, has its page, and none that waits could join."""
        active, cache = self.active_requests, self.cache
        count = len(active)
        if not active or count > min(token_budget, self.max_requests_per_batch) or not supports_fast_path(cache):
            return None
        if self.waiting_requests and not self.block_new_requests and count < self.max_requests_per_batch:
            return None
        page_size = cache.cache_allocators["full_attention"].tokens_per_page
        longest = cache.max_decode_fast_path_length
        scheduled: list[Any] = []
        last = next(reversed(active.values()))
        for state in active.values():
            length = state.position_offset
            if state._status is not RequestStatus.DECODING or length >= longest or len(state.tokens_to_process) != 1:
                return None
            # When steps overlap, the last token of a sequence may be in flight. The results of the step in flight are
            # only looked at after another step is launched, so one such sequence goes along if there are no others.
            if length - len(state.initial_tokens) >= state._new_tokens_limit - 1 and (state is not last or scheduled):
                continue
            place = length % page_size
            if not place and not cache.can_store_request_tokens(state, 1):
                return None
            complete = cache.count_new_complete_blocks(state, 1) if place == page_size - 1 else {}
            scheduled.append(FutureRequestState(state, True, complete, 1))
        return scheduled


def install_fast_path(processor: Any) -> None:
    """Let the batch processor's decoding steps take the fast path, if its cache is built for it."""
    if not supports_fast_path(processor.cache):
        return
    ios = processor.inputs_and_outputs
    if not isinstance(ios, ContinuousBatchingAsyncIOs):
        ios.prepare_batch_tensors = StepInputs(ios).prepare
        return
    for pair in ios.io_pairs:
        pair.host_io.prepare_batch_tensors = StepInputs(pair.host_io).prepare
    ios.infer_carry_over_ids = lambda: _carried(ios)


def _carried(ios: Any) -> torch.Tensor:
    """Row of the last step whose token each input of the next step takes, or -1; int32 [inputs]."""
    following = ios.io_pairs[ios.current_pair].host_io.req_id_to_new_token_position
    last = ios.io_pairs[1 - ios.current_pair].host_io.req_id_to_new_token_position
    carried = np.full(ios.max_batch_tokens, -1, np.int32)
    for row, key in enumerate(last):
        place = following.get(key)
        if place is not None:
            carried[place] = row
    return torch.from_numpy(carried)
