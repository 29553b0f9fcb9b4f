"""Scheduler with a fast path for steps in which all sequences decode, and the inputs of such steps.

With hundreds of sequences a step takes the GPU a few milliseconds, and transformers' bookkeeping for it takes longer:
per sequence it looks up the pages, turns their list into a tensor, and copies the output. Nearly all steps only decode,
and take the fast path; all others go transformers' way. The fast path knows the paged cache of transformers 5.23 and is
off for caches that are built otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers.generation.continuous_batching.input_outputs import ContinuousBatchingAsyncIOs
from transformers.generation.continuous_batching.requests import (
    TMP_TOKEN_ID,
    FutureRequestState,
    RequestState,
    RequestStatus,
)
from transformers.generation.continuous_batching.scheduler import FIFOScheduler


class SequenceState(RequestState):  # type: ignore[misc]
    """A sequence that is its own output, valid until the next step."""

    cached_tokens = 0
    """Prompt tokens found in the prefix cache."""

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
    """First come, first served, with the fast path for decoding steps, and with cancelled sequences marked as finished.

    When steps overlap, the results of a step that holds a cancelled sequence are still to come; unmarked, it would
    touch pages that are no longer the sequence's.
    """

    def clear_cancelled_requests(self) -> Any:
        """Drop cancelled sequences; returns their states."""
        states = super().clear_cancelled_requests()
        for state in states or ():
            state._status = RequestStatus.FINISHED
        return states

    def _infer_request_tokens(self, state: Any, *args: Any) -> Any:
        """The tokens that a sequence wants processed; here its prompt is looked up in the prefix cache."""
        before = state.position_offset
        tokens = super()._infer_request_tokens(state, *args)
        if state.position_offset != before and not state._true_initial_tokens:
            state.cached_tokens = state.position_offset - before
        return tokens

    def schedule_batch(self, token_budget: int, cache_budget: int) -> Any:
        """The sequences of the next step; see the original."""
        scheduled = self._all_decoding(token_budget)
        if scheduled is None:
            return super().schedule_batch(token_budget, cache_budget)
        self.starved_requests: list[Any] = []
        return scheduled, True, len(scheduled), 0

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


class _DecodeInputs:
    """Writer of one set of step inputs for decoding steps; remembers the pages it has written there."""

    def __init__(self, io: Any) -> None:
        self._io = io
        self._general: Callable[..., None] = io.prepare_batch_tensors
        self._allocator = io.cache.cache_allocators["full_attention"]
        self._stride = self._allocator.block_physical_stride // self._allocator.tokens_per_page
        self._on_host = io.block_table.device.type == "cpu"
        self._table = io.block_table if self._on_host else torch.empty_like(io.block_table, device="cpu")
        self._pages = self._table[0].numpy()
        self._known: list[list[int]] = []

    def prepare(
        self,
        requests_in_batch: Sequence[Any],
        logits_processors: Any,
        use_decode_fast_path: bool,
        num_q_tokens: int,
        max_kv_read: int,
        use_padding: bool,
    ) -> None:
        """Write the inputs of a step, in the place of `prepare_batch_tensors`."""
        if not use_decode_fast_path or not all(item.has_new_token for item in requests_in_batch):
            self._known = []
            self._general(
                requests_in_batch, logits_processors, use_decode_fast_path, num_q_tokens, max_kv_read, use_padding
            )
            return
        io = self._io
        count = len(requests_in_batch)
        rows = min(num_q_tokens, io.max_requests_per_batch) if use_padding else count
        ids: list[int] = []
        lengths: list[int] = []
        places: dict[str, int] = {}
        tables, known = self._allocator.block_table, self._known
        known.extend([] for _ in range(count - len(known)))
        changed = False
        for i, item in enumerate(requests_in_batch):
            state = item.state
            ids.append(state.tokens_to_process[0])
            state.tokens_to_process = [TMP_TOKEN_ID]
            state.position_offset = length = state.position_offset + 1
            lengths.append(length)
            places[state.request_id] = i
            blocks = tables[state.request_id]
            if known[i] != blocks:
                self._pages[i, : len(blocks)] = np.array(blocks, np.int32) * self._stride
                known[i] = list(blocks)
                changed = True
        if changed and not self._on_host:
            io.block_table[:, :count].copy_(self._table[:, :count])
        io.use_block_table = True
        io.num_q_tokens, io.max_kv_read, io.num_request_in_batch = num_q_tokens, 0, count
        io.requests_in_batch, io.req_id_to_new_token_position = list(requests_in_batch), places
        io.true_read_sizes, io.true_write_sizes = [0], [0]
        io.total_seqlen_q, io.max_length_q = count, 1
        key_ends = np.full(rows + 1, 0, np.int32)
        np.cumsum(lengths, out=key_ends[1 : count + 1])
        key_ends[count + 1 :] = key_ends[count]
        upward = np.arange(rows + 1, dtype=np.int32)
        _put(io.input_ids, _filled(ids, rows))
        _put(io.position_ids, _filled([length - 1 for length in lengths], rows))
        _put(io.cumulative_seqlens_q, np.minimum(upward, count))
        _put(io.logits_indices, np.where(upward[:rows] < count, upward[:rows], 0))
        _put(io.cumulative_seqlens_k["full_attention"], key_ends)
        io.total_seqlen_k["full_attention"] = int(key_ends[-1])
        io.max_length_k["full_attention"] = max(lengths)
        logits_processors.prepare_tensor_args(
            requests_in_batch=requests_in_batch, arg_storage=io._bulk_input_tensor[io.static_inputs :]
        )


def _filled(values: list[int], rows: int) -> npt.NDArray[np.int32]:
    filled = np.zeros(rows, np.int32)
    filled[: len(values)] = values
    return filled


def _put(tensor: torch.Tensor, values: npt.NDArray[np.int32]) -> None:
    tensor[: len(values)].copy_(torch.from_numpy(values))


def install_fast_path(processor: Any) -> None:
    """Let the batch processor's decoding steps take the fast path, if its cache is built for it."""
    if not supports_fast_path(processor.cache):
        return
    ios = processor.inputs_and_outputs
    if not isinstance(ios, ContinuousBatchingAsyncIOs):
        ios.prepare_batch_tensors = _DecodeInputs(ios).prepare
        return
    for pair in ios.io_pairs:
        pair.host_io.prepare_batch_tensors = _DecodeInputs(pair.host_io).prepare
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
