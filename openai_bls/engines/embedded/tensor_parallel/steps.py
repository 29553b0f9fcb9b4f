"""Step inputs of transformers' continuous batching as a message, and back into the inputs of another rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers.generation.continuous_batching.utils import build_attention_mask

from openai_bls.engines.embedded.tensor_parallel.messages import Step


def captured(io: Any, pair: int, *, padded: bool, longest: int | None, adapters: bool) -> Step:
    """The inputs of a step in `io`, where the host has them; `adapters`: with those of its tokens."""
    tokens, sequences = io.num_q_tokens, io.num_request_in_batch
    columns = max(tokens, sequences) + 1
    pages = written = read = b""
    if io.use_block_table:
        longest_k = max(io.max_length_k.values())
        pages = _bytes(io.block_table[:, :sequences, : -(-longest_k // _page_size(io))])
    else:
        written = _bytes(io.write_index_storage[:, :tokens])
        if io.max_kv_read:
            read = _bytes(io.read_index_storage[:, : io.max_kv_read + tokens])
    return Step(
        pair=pair,
        padded=padded,
        longest=longest,
        tokens=tokens,
        sequences=sequences,
        max_kv_read=io.max_kv_read,
        uses_pages=io.use_block_table,
        read_sizes=io.true_read_sizes,
        write_sizes=io.true_write_sizes,
        max_length_q=io.max_length_q,
        max_length_k=io.max_length_k,
        total_length_q=io.total_seqlen_q,
        total_length_k=io.total_seqlen_k,
        small=_bytes(io._bulk_input_tensor[: io.static_inputs, :columns]),
        pages=pages,
        written=written,
        read=read,
        adapters=_bytes(io._bulk_input_tensor[-1, :tokens]) if adapters else b"",
    )


def fill(io: Any, step: Step) -> None:
    """Put the inputs of a step into `io`."""
    io.num_q_tokens, io.num_request_in_batch = step.tokens, step.sequences
    io.max_kv_read, io.use_block_table = step.max_kv_read, step.uses_pages
    io.true_read_sizes, io.true_write_sizes = step.read_sizes, step.write_sizes
    io.max_length_q, io.max_length_k = step.max_length_q, dict(step.max_length_k)
    io.total_seqlen_q, io.total_seqlen_k = step.total_length_q, dict(step.total_length_k)
    _put(io._bulk_input_tensor[: io.static_inputs], step.small, np.int32)
    _put(io._bulk_input_tensor[-1], step.adapters, np.int32)
    _put(io.block_table[:, : step.sequences], step.pages, np.int32)
    _put(io.write_index_storage, step.written, np.int64)
    _put(io.read_index_storage, step.read, np.int64)
    if io.attention_mask is not None:
        _build_masks(io, step.sequences)


def _build_masks(io: Any, sequences: int) -> None:
    """The masks that `prepare_batch_tensors` of transformers builds for attention without a kernel for lengths."""
    query_ends = io.cumulative_seqlens_q[: sequences + 1].tolist()
    for kind, mask in io.attention_mask.items():
        key_ends = io.cumulative_seqlens_k[kind][: sequences + 1].tolist()
        mask[:, :, : io.num_q_tokens, : io.num_q_tokens + io.max_kv_read].fill_(torch.finfo(mask.dtype).min)
        window = getattr(io.config, "sliding_window", None) if kind == "sliding_attention" else 1
        build_attention_mask(mask, query_ends, key_ends, window)


def _page_size(io: Any) -> int:
    return int(next(iter(io.cache.cache_allocators.values())).tokens_per_page)


def _bytes(tensor: torch.Tensor) -> bytes:
    data: bytes = tensor.cpu().numpy().tobytes()
    return data


def _put(tensor: torch.Tensor, data: bytes, dtype: type[np.generic]) -> None:
    """Write `data` into the first columns of `tensor`."""
    if data:
        values = np.frombuffer(data, dtype).reshape(*tensor.shape[:-1], -1)
        tensor[..., : values.shape[-1]].copy_(torch.from_numpy(values.copy()))
