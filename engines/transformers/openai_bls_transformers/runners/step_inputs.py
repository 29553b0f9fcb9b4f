"""Inputs of a step for a paged cache of one kind of layers, written by numpy.

transformers writes them sequence by sequence, in Python lists with an element per token of every context. With
hundreds of sequences that takes longer than the GPU needs for the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers.generation.continuous_batching.requests import TMP_TOKEN_ID

_LAYERS = "full_attention"


class StepInputs:
    """Writer of one set of step inputs; remembers the pages of decoding steps that it has written there."""

    def __init__(self, io: Any) -> None:
        self._io = io
        self._general: Callable[..., None] = io.prepare_batch_tensors
        self._allocator = io.cache.cache_allocators[_LAYERS]
        self._page_size = int(self._allocator.tokens_per_page)
        self._stride = int(self._allocator.block_physical_stride)
        self._offsets = np.arange(self._page_size)
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
        io = self._io
        sizes = num_q_tokens, max_kv_read, use_padding
        if io.attention_mask is not None or not requests_in_batch:
            self._general(requests_in_batch, logits_processors, use_decode_fast_path, *sizes)
            return
        io.num_request_in_batch = len(requests_in_batch)
        io.requests_in_batch = list(requests_in_batch)
        rows = min(num_q_tokens, io.max_requests_per_batch) if use_padding else len(requests_in_batch)
        if use_decode_fast_path and all(item.has_new_token for item in requests_in_batch):
            self._decoding(requests_in_batch, num_q_tokens, rows)
        else:
            self._mixed(requests_in_batch, num_q_tokens, max_kv_read, rows)
        logits_processors.prepare_tensor_args(
            requests_in_batch=requests_in_batch, arg_storage=io._bulk_input_tensor[io.static_inputs :]
        )

    def _decoding(self, requests: Sequence[Any], num_q_tokens: int, rows: int) -> None:
        """One new token per sequence, and page tables."""
        io, count = self._io, len(requests)
        ids: list[int] = []
        lengths: list[int] = []
        places: dict[str, int] = {}
        tables, known = self._allocator.block_table, self._known
        known.extend([] for _ in range(count - len(known)))
        changed = False
        for i, item in enumerate(requests):
            state = item.state
            ids.append(state.tokens_to_process[0])
            state.tokens_to_process = [TMP_TOKEN_ID]
            state.position_offset = length = state.position_offset + 1
            lengths.append(length)
            places[state.request_id] = i
            blocks = tables[state.request_id]
            if known[i] != blocks:
                self._pages[i, : len(blocks)] = np.array(blocks, np.int32) * (self._stride // self._page_size)
                known[i] = list(blocks)
                changed = True
        if changed and not self._on_host:
            io.block_table[:, :count].copy_(self._table[:, :count])
        io.use_block_table = True
        io.num_q_tokens, io.max_kv_read = num_q_tokens, 0
        io.req_id_to_new_token_position = places
        io.true_read_sizes, io.true_write_sizes = [0], [0]
        io.total_seqlen_q, io.max_length_q = count, 1
        upward = np.arange(rows + 1, dtype=np.int32)
        _put(io.input_ids, _filled(ids, rows))
        _put(io.position_ids, _filled([length - 1 for length in lengths], rows))
        _put(io.cumulative_seqlens_q, np.minimum(upward, count))
        _put(io.logits_indices, np.where(upward[:rows] < count, upward[:rows], 0))
        self._put_key_ends(lengths, rows)

    def _mixed(self, requests: Sequence[Any], num_q_tokens: int, max_kv_read: int, rows: int) -> None:
        """Any new tokens per sequence, and one slot of the cache per token."""
        io, tables = self._io, self._allocator.block_table
        self._known = []
        io.use_block_table = False
        io.num_q_tokens, io.max_kv_read = num_q_tokens, max_kv_read
        io._reset_static_tensors()
        ids: list[int] = []
        lengths: list[int] = []
        queries: list[int] = []
        rows_with_token: list[int] = []
        places: dict[str, int] = {}
        positions: list[npt.NDArray[np.int64]] = []
        written: list[npt.NDArray[np.int64]] = []
        read: list[npt.NDArray[np.int64]] = []
        for item in requests:
            state = item.state
            past, count = state.position_offset, item.query_length
            state.position_offset = length = past + count
            ids.extend(state.tokens_to_process)
            queries.append(count)
            lengths.append(length)
            blocks = np.array(tables[state.request_id][: -(-length // self._page_size)], np.int64)
            slots = ((blocks * self._stride)[:, None] + self._offsets).ravel()
            positions.append(np.arange(past, length))
            written.append(slots[past:length])
            read.append(slots[:length])
            if item.has_new_token:
                rows_with_token.append(len(ids) - 1)
                places[state.request_id] = len(ids) - 1
                state.tokens_to_process = [TMP_TOKEN_ID]
        io.req_id_to_new_token_position = places
        io.total_seqlen_q, io.max_length_q = len(ids), max(queries)
        query_ends = np.full(rows + 1, len(ids), np.int32)
        query_ends[: len(queries) + 1] = np.cumsum([0, *queries])
        _put(io.input_ids, np.array(ids, np.int32))
        _put(io.position_ids, np.concatenate(positions).astype(np.int32))
        _put(io.cumulative_seqlens_q, query_ends)
        _put(io.logits_indices, np.array(rows_with_token, np.int32))
        _put(io.write_index_storage[0], np.concatenate(written))
        io.true_write_sizes, io.true_read_sizes = [len(ids)], [0]
        if max_kv_read:
            slots = np.concatenate(read)
            _put(io.read_index_storage[0], slots)
            io.true_read_sizes = [len(slots)]
        self._put_key_ends(lengths, rows)

    def _put_key_ends(self, lengths: list[int], rows: int) -> None:
        io, count = self._io, len(lengths)
        key_ends = np.zeros(rows + 1, np.int32)
        np.cumsum(lengths, out=key_ends[1 : count + 1])
        key_ends[count + 1 :] = key_ends[count]
        _put(io.cumulative_seqlens_k[_LAYERS], key_ends)
        io.total_seqlen_k[_LAYERS] = int(key_ends[-1])
        io.max_length_k[_LAYERS] = max(lengths)


def _filled(values: list[int], rows: int) -> npt.NDArray[np.int32]:
    filled = np.zeros(rows, np.int32)
    filled[: len(values)] = values
    return filled


def _put(tensor: torch.Tensor, values: npt.NDArray[Any]) -> None:
    tensor[: len(values)].copy_(torch.from_numpy(values))
