"""Attention that reads the paged cache where it lies, by the Triton kernels of `attention_programs`.

Written for half precision. Every kernel has fixed shapes for fixed shapes of its arguments and looks at lengths on the
device only, so that all of them can be captured in CUDA graphs. Sequences are laid end to end, as continuous batching
has them, and the query heads that share a key head are the rows of one matrix product.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton

from openai_bls_transformers.attention_spec import PLAIN, Scoring
from openai_bls_transformers.gpu import dependent_launch
from openai_bls_transformers.gpu.attention_programs import (
    LOG2_E,
    decode_kernel,
    join_kernel,
    join_mixed_kernel,
    mixed_kernel,
)

ANY_QUERIES = 2**30
"""More queries than a sequence has."""
_MIN_ROWS = 16
"""Rows that a matrix product needs at least."""
_DECODE_TOKENS = 64
"""Keys per tile of the decode kernel."""
_MIXED_ROWS = 64
"""Rows (queries times the query heads of a key head) per program of the mixed kernel."""
_MIXED_TOKENS = 64
"""Keys per tile of the mixed kernel."""
_MAX_SPLITS = 64  # shares of the keys of one sequence
_FEW_SPLITS = 8
"""Shares up to which the sequences of a decoding step nearly fill the device by themselves, and into which the keys are
cut then, so that the longest sequence does not keep the others waiting."""
_MOST_PROGRAMS = 15
"""Programs per multiprocessor up to which they are: those that find no keys take their time as well."""
_LEAST_DECODE_TILES = 4
"""Tiles of keys below which a share is not cut then: joining shares costs as much as some tiles."""
_MIXED_SPLITS = 16
"""Shares of the keys of a block of queries in the mixed kernel, where contexts are long."""
_LEAST_SHARE_TILES = 16
"""Tiles of keys below which the mixed kernel does not cut a share."""
_FEW_QUERIES = 512
"""Queries of a step up to which the keys of prompts are shared out as well. Larger steps fill a GPU without, and have
half as many shares, each of which needs memory for every query."""
_SPARE_SHARED_BYTES = 8192
"""Shared memory left to the compiler, besides the tiles."""


def largest(kind: torch.dtype) -> float:
    """Largest number in a cache of a type that more may come for; 0 for one as wide as what comes."""
    return torch.finfo(kind).max if kind.itemsize == 1 else 0.0


def _splits(programs: int, processors: int) -> int:
    """Shares into which the keys of a sequence are cut, a power of two.

    Args:
        programs: number of programs for one share of each sequence.
        processors: number of multiprocessors of the device.
    """
    wanted = 1
    while wanted < _MAX_SPLITS and programs * wanted < 2 * processors:
        wanted *= 2
    while wanted < _FEW_SPLITS and 2 * programs * wanted <= _MOST_PROGRAMS * processors:
        wanted *= 2
    return wanted


def _factors(scale: float, cap: float) -> tuple[float, float]:
    """Factor of the scores and their bound, as the programs take them: for powers of two, see `capped`."""
    return (2 * scale / cap * LOG2_E, cap * LOG2_E) if cap else (scale * LOG2_E, 0.0)


def decode_attention(
    query: torch.Tensor,
    new_key: torch.Tensor,
    new_value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    pages: torch.Tensor,
    key_ends: torch.Tensor,
    page_size: int,
    scale: float,
    processors: int,
    angles: tuple[torch.Tensor, torch.Tensor] | None = None,
    scoring: Scoring = PLAIN,
) -> torch.Tensor:
    """Attention of one new token a sequence over its pages; the new key and value are written there too.

    Args:
        query: [sequences, heads, size].
        new_key: [sequences, key heads, size].
        new_value: [sequences, key heads, size].
        key_cache: [slots, key heads, size], rows contiguous; in the type of `query` or in FP8.
        value_cache: [slots, key heads, size], rows contiguous; in the type of `key_cache`.
        pages: int32 [sequences, most pages], in units of `page_size` slots.
        key_ends: int32 [sequences + 1], running total of tokens with the new one; a sequence of none is padding.
        page_size: tokens of a page.
        scale: factor of the scores.
        processors: number of multiprocessors of the device.
        angles: cosine and sine [sequences, size] of the position, if `query` and `new_key` are to be rotated by them.
        scoring: window, cap and sinks of the layer.

    Returns:
        [sequences, heads, size].
    """
    count, heads, size = query.shape
    kv_heads = new_key.shape[1]
    dims = triton.next_power_of_2(size)
    splits = _splits(count * kv_heads, processors)
    least = _LEAST_DECODE_TILES if splits <= _FEW_SPLITS else 1
    if scoring.window:
        shares = triton.cdiv(triton.cdiv(scoring.window, _DECODE_TOKENS), least)
        splits = min(splits, triton.next_power_of_2(shares))
    factor, cap = _factors(scale, scoring.cap)
    out = query.new_empty(count, heads, size)
    sums = query.new_empty((count, heads, splits, dims) if splits > 1 else (1,), dtype=torch.float32)
    stats = query.new_empty((count, heads, splits, 2) if splits > 1 else (1,), dtype=torch.float32)
    cos, sin = (query, query) if angles is None else angles
    decode_kernel[(count, kv_heads, splits)](
        query,
        new_key,
        new_value,
        cos,
        sin,
        key_cache,
        value_cache,
        pages,
        key_ends,
        scoring.sinks,
        out,
        sums,
        stats,
        factor,
        cap,
        scoring.window,
        query.stride(0),
        query.stride(1),
        new_key.stride(0),
        new_key.stride(1),
        new_value.stride(0),
        new_value.stride(1),
        cos.stride(0),
        key_cache.stride(0),
        pages.stride(0),
        ROTATE=angles is not None,
        HEADS=heads,
        GROUP=heads // kv_heads,
        SIZE=size,
        PAGE=page_size,
        ROWS=max(_MIN_ROWS, triton.next_power_of_2(heads // kv_heads)),
        DIMS=dims,
        TILE=_DECODE_TOKENS,
        SPLITS=splits,
        LEAST_TILES=least,
        LARGEST=largest(key_cache.dtype),
        WINDOWED=scoring.window > 0,
        CAPPED=scoring.cap > 0,
        SINKS=scoring.sinks is not None,
        num_warps=4,
        num_stages=3,
        **dependent_launch.options(query.device, early=False),
    )
    if splits > 1:
        join_kernel[(count, heads)](
            sums,
            stats,
            key_ends,
            out,
            scoring.window,
            HEADS=heads,
            SIZE=size,
            DIMS=dims,
            TILE=_DECODE_TOKENS,
            SPLITS=splits,
            LEAST_TILES=least,
            WINDOWED=scoring.window > 0,
            num_warps=4,
            **dependent_launch.options(query.device),
        )
    return out


def mixed_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slots: torch.Tensor,
    query_ends: torch.Tensor,
    key_ends: torch.Tensor,
    scale: float,
    most_queries: int = ANY_QUERIES,
    split_keys: bool = False,
    scoring: Scoring = PLAIN,
) -> torch.Tensor:
    """Causal attention of packed sequences of any lengths; the last query of each sees all its keys.

    Args:
        query: [queries, heads, size].
        key: the cache, [slots, key heads, size]; in the type of `query` or in FP8.
        value: the cache, [slots, key heads, size]; in the type of `key`.
        slots: int64, the slot of each key of each sequence, end to end.
        query_ends: int32 [sequences + 1], running total of queries; sequences of none may follow the others.
        key_ends: int32 [sequences + 1], running total of keys.
        scale: factor of the scores.
        most_queries: most queries of a sequence; longer sequences are left out, their rows are zero.
        split_keys: several programs share the keys of a query, which pays where contexts are long; in a step of more
            than `_FEW_QUERIES` only for sequences whose queries one block holds.
        scoring: window, cap and sinks of the layer.

    Returns:
        [queries, heads, size]; rows past the last query are zero.
    """
    queries, heads, size = query.shape
    kv_heads = key.shape[1]
    width = triton.next_power_of_2(heads // kv_heads)
    rows, dims = max(_MIXED_ROWS, width), triton.next_power_of_2(size)
    count = query_ends.shape[0] - 1
    out = query.new_zeros(queries, heads, size)
    tokens, is_large = rows // width, queries > _FEW_QUERIES
    splits = 1
    if split_keys:
        splits = _MIXED_SPLITS // 2 if is_large else _MIXED_SPLITS
    factor, cap = _factors(scale, scoring.cap)
    sums = query.new_empty((queries, heads, splits, dims) if split_keys else (1,), dtype=torch.float32)
    stats = query.new_empty((queries, heads, splits, 2) if split_keys else (1,), dtype=torch.float32)
    shares = torch.zeros((queries, heads) if split_keys else (1,), dtype=torch.int32, device=query.device)
    mixed_kernel[(queries // tokens + count, kv_heads, splits)](
        query,
        key,
        value,
        slots,
        query_ends,
        key_ends,
        scoring.sinks,
        out,
        sums,
        stats,
        shares,
        count,
        most_queries,
        tokens if is_large else ANY_QUERIES,
        factor,
        cap,
        scoring.window,
        query.stride(0),
        query.stride(1),
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        HEADS=heads,
        GROUP=heads // kv_heads,
        WIDTH=width,
        SIZE=size,
        ROWS=rows,
        DIMS=dims,
        TILE=_MIXED_TOKENS,
        SPLITS=splits,
        LEAST_TILES=_LEAST_SHARE_TILES,
        WINDOWED=scoring.window > 0,
        CAPPED=scoring.cap > 0,
        SINKS=scoring.sinks is not None,
        num_warps=4,
        num_stages=_mixed_stages(query.device, rows, dims),
    )
    if split_keys:
        join_mixed_kernel[(queries * heads,)](
            sums, stats, shares, out, SIZE=size, DIMS=dims, SPLITS=splits, num_warps=2
        )
    return out


@functools.cache
def _mixed_stages(device: Any, rows: int, dims: int) -> int:
    """Tiles of keys and values in flight: 3 where the queries and 3 tiles fit into shared memory, else 2."""
    if device.type != "cuda":
        return 2
    room = int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin) - _SPARE_SHARED_BYTES
    return 3 if 2 * dims * (rows + 3 * 2 * _MIXED_TOKENS) <= room else 2


@functools.cache
def processors(device: Any) -> int:
    """Multiprocessors of a GPU."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
