"""The embedded engine under an open loop of mixed requests: `python -m benchmarks.mixed_load ENGINE_DIR`.

Written for half precision. Every kernel has fixed shapes for fixed shapes of its arguments and looks at lengths on the
device only, so that all of them can be captured in CUDA graphs. Sequences are laid end to end, as continuous batching
has them, and the query heads that share a key head are the rows of one matrix product.

Tokens lie in the cache as rows of [heads, size] at `slot * slot_stride`; a slot comes from a table of pages (decoding)
or from a list with one slot per token (everything else).
"""

# ruff: noqa: ANN001, ANN201, ANN202, N803, N806, PLR0915
# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-not-found"

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl

LOG2_E = 1.4426950408889634
LEAST_SCORE = tl.constexpr(-1e30)
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
_MIXED_SPLITS = 16
"""Shares of the keys of a block of queries in the mixed kernel, where contexts are long."""
_LEAST_SHARE_TILES = 16
"""Tiles of keys below which the mixed kernel does not cut a share."""
_SPARE_SHARED_BYTES = 8192
"""Shared memory left to the compiler, besides the tiles."""


@triton.jit
def add_tile(scores, v, best, total, sums):
    """The running maximum, sum and weighted values of a softmax, with one more tile of keys."""
    higher = tl.maximum(best, tl.max(scores, 1))
    weights = tl.exp2(scores - higher[:, None])
    shrink = tl.exp2(best - higher)
    sums = sums * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
    return higher, total * shrink + tl.sum(weights, 1), sums


@triton.jit
def _decode_kernel(
    q_ptr,
    new_k_ptr,
    new_v_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    ends_ptr,
    out_ptr,
    sums_ptr,
    stats_ptr,
    scale,
    q_token,
    q_head,
    new_k_token,
    new_k_head,
    new_v_token,
    new_v_head,
    slot_stride,
    table_stride,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """One new token of one sequence, for the query heads that share a key head, over a share of the keys."""
    seq = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(ends_ptr + seq + 1) - tl.load(ends_ptr + seq)
    share = tl.cdiv(tl.cdiv(length, TILE), SPLITS) * TILE
    first = split * share
    last = tl.minimum(length, first + share)
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIMS)
    offsets = tl.arange(0, TILE)
    in_size = dims < SIZE
    head = kv_head * GROUP + rows
    q_mask = (rows < GROUP)[:, None] & in_size[None, :]
    q = tl.load(q_ptr + seq.to(tl.int64) * q_token + head[:, None] * q_head + dims[None, :], mask=q_mask, other=0.0)
    new_k = tl.load(new_k_ptr + seq.to(tl.int64) * new_k_token + kv_head * new_k_head + dims, mask=in_size, other=0.0)
    new_v = tl.load(new_v_ptr + seq.to(tl.int64) * new_v_token + kv_head * new_v_head + dims, mask=in_size, other=0.0)
    table = table_ptr + seq.to(tl.int64) * table_stride
    newest = length - 1
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, DIMS], tl.float32)
    for start in range(first, tl.minimum(last, newest), TILE):
        position = start + offsets
        cached = position < newest
        page = tl.load(table + position // PAGE, mask=cached, other=0).to(tl.int64)
        at = (page * PAGE + position % PAGE) * slot_stride + kv_head * SIZE
        mask = cached[:, None] & in_size[None, :]
        k = tl.load(k_ptr + at[:, None] + dims[None, :], mask=mask, other=0.0)
        v = tl.load(v_ptr + at[:, None] + dims[None, :], mask=mask, other=0.0)
        scores = tl.where(cached[None, :], tl.dot(q, tl.trans(k)) * scale, float("-inf"))
        best, total, sums = add_tile(scores, v, best, total, sums)
    if (newest >= first) & (newest < last):
        page = tl.load(table + newest // PAGE).to(tl.int64)
        at = (page * PAGE + newest % PAGE) * slot_stride + kv_head * SIZE
        tl.store(k_ptr + at + dims, new_k, mask=in_size)
        tl.store(v_ptr + at + dims, new_v, mask=in_size)
        score = tl.sum(q.to(tl.float32) * new_k.to(tl.float32)[None, :], 1) * scale
        higher = tl.maximum(best, score)
        weight = tl.exp2(score - higher)
        shrink = tl.exp2(best - higher)
        total = total * shrink + weight
        sums = sums * shrink[:, None] + weight[:, None] * new_v.to(tl.float32)[None, :]
        best = higher
    if SPLITS == 1:
        result = tl.where((total > 0)[:, None], sums / total[:, None], 0.0)
        to = out_ptr + (seq.to(tl.int64) * HEADS + head[:, None]) * SIZE + dims[None, :]
        tl.store(to, result.to(out_ptr.dtype.element_ty), mask=q_mask)
    elif first < last:
        row = (seq.to(tl.int64) * HEADS + head) * SPLITS + split
        tl.store(sums_ptr + row[:, None] * DIMS + dims[None, :], sums, mask=(rows < GROUP)[:, None])
        tl.store(stats_ptr + row * 2, best, mask=rows < GROUP)
        tl.store(stats_ptr + row * 2 + 1, total, mask=rows < GROUP)


@triton.jit
def _join_kernel(
    sums_ptr,
    stats_ptr,
    ends_ptr,
    out_ptr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    DIMS: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Put the shares of `_decode_kernel` together."""
    seq = tl.program_id(0)
    row = seq.to(tl.int64) * HEADS + tl.program_id(1)
    length = tl.load(ends_ptr + seq + 1) - tl.load(ends_ptr + seq)
    share = tl.cdiv(tl.cdiv(length, TILE), SPLITS) * TILE
    splits = tl.arange(0, SPLITS)
    dims = tl.arange(0, DIMS)
    used = splits * share < length
    best = tl.load(stats_ptr + (row * SPLITS + splits) * 2, mask=used, other=float("-inf"))
    total = tl.load(stats_ptr + (row * SPLITS + splits) * 2 + 1, mask=used, other=0.0)
    weights = tl.where(used, tl.exp2(best - tl.max(best, 0)), 0.0)
    whole = tl.sum(weights * total, 0)
    at = sums_ptr + (row * SPLITS + splits)[:, None] * DIMS + dims[None, :]
    sums = tl.load(at, mask=used[:, None], other=0.0)
    result = tl.sum(sums * weights[:, None], 0)
    result = tl.where(whole > 0, result / whole, 0.0)
    tl.store(out_ptr + row * SIZE + dims, result.to(out_ptr.dtype.element_ty), mask=dims < SIZE)


@triton.jit(do_not_specialize=["count", "most_queries"])
def _mixed_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    slots_ptr,
    query_ends_ptr,
    key_ends_ptr,
    out_ptr,
    sums_ptr,
    stats_ptr,
    shares_ptr,
    count,
    most_queries,
    scale,
    q_token,
    q_head,
    k_slot,
    k_head,
    v_slot,
    v_head,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    LEAST_TILES: tl.constexpr,
):
    """ROWS / WIDTH consecutive queries of one sequence, for the query heads that share a key head.

    With SPLITS above 1, over a share of the keys.
    """
    block = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    TOKENS: tl.constexpr = ROWS // WIDTH
    # Sequence s has the blocks from query_ends[s] // TOKENS + s on, which leaves room for each to end with a part.
    low = block * 0
    high = low + count
    while low < high:
        middle = (low + high) // 2
        if tl.load(query_ends_ptr + middle) // TOKENS + middle <= block:
            low = middle + 1
        else:
            high = middle
    seq = low - 1
    q0 = tl.load(query_ends_ptr + seq)
    queries = tl.load(query_ends_ptr + seq + 1) - q0
    first = (block - q0 // TOKENS - seq) * TOKENS
    k0 = tl.load(key_ends_ptr + seq)
    length = tl.load(key_ends_ptr + seq + 1) - k0
    past = length - queries
    end = past + tl.minimum(first + TOKENS, queries)
    share = tl.maximum(tl.cdiv(tl.cdiv(end, TILE), SPLITS), LEAST_TILES) * TILE if SPLITS > 1 else end
    begin = split * share
    if (first < queries) & (queries <= most_queries) & (begin < end):
        rows = tl.arange(0, ROWS)
        dims = tl.arange(0, DIMS)
        offsets = tl.arange(0, TILE)
        in_size = dims < SIZE
        token = first + rows // WIDTH
        head = kv_head * GROUP + rows % WIDTH
        is_row = (rows % WIDTH < GROUP) & (token < queries)
        q_mask = is_row[:, None] & in_size[None, :]
        at = (q0 + token).to(tl.int64)
        q = tl.load(q_ptr + at[:, None] * q_token + head[:, None] * q_head + dims[None, :], mask=q_mask, other=0.0)
        # Not minus infinity: there are rows that see no key of the last share.
        best = tl.full([ROWS], LEAST_SCORE, tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        sums = tl.zeros([ROWS, DIMS], tl.float32)
        # Every query of the block sees all keys of the first tiles.
        seen_by_all = (past + first + 1) // TILE * TILE
        last = tl.minimum(end, begin + share)
        for start in range(begin, tl.minimum(seen_by_all, last), TILE):
            slot = tl.load(slots_ptr + k0 + start + offsets).to(tl.int64)
            k = tl.load(
                k_ptr + slot[:, None] * k_slot + kv_head * k_head + dims[None, :], mask=in_size[None, :], other=0.0
            )
            v = tl.load(
                v_ptr + slot[:, None] * v_slot + kv_head * v_head + dims[None, :], mask=in_size[None, :], other=0.0
            )
            best, total, sums = add_tile(tl.dot(q, tl.trans(k)) * scale, v, best, total, sums)
        for start in range(tl.maximum(seen_by_all, begin), last, TILE):
            position = start + offsets
            present = position < end
            slot = tl.load(slots_ptr + k0 + position, mask=present, other=0).to(tl.int64)
            mask = present[:, None] & in_size[None, :]
            k = tl.load(k_ptr + slot[:, None] * k_slot + kv_head * k_head + dims[None, :], mask=mask, other=0.0)
            v = tl.load(v_ptr + slot[:, None] * v_slot + kv_head * v_head + dims[None, :], mask=mask, other=0.0)
            seen = present[None, :] & (position[None, :] <= (past + token)[:, None])
            scores = tl.where(seen, tl.dot(q, tl.trans(k)) * scale, LEAST_SCORE)
            best, total, sums = add_tile(scores, v, best, total, sums)
        row = at * HEADS + head
        if SPLITS > 1:
            if split == 0:
                tl.store(shares_ptr + row, tl.cdiv(end, share) + tl.zeros([ROWS], tl.int32), mask=is_row)
            if share < end:
                part = row * SPLITS + split
                tl.store(sums_ptr + part[:, None] * DIMS + dims[None, :], sums, mask=is_row[:, None])
                tl.store(stats_ptr + part * 2, best, mask=is_row)
                tl.store(stats_ptr + part * 2 + 1, total, mask=is_row)
        if share >= end:
            result = sums / total[:, None]
            tl.store(out_ptr + row[:, None] * SIZE + dims[None, :], result.to(out_ptr.dtype.element_ty), mask=q_mask)


@triton.jit
def _join_mixed_kernel(
    sums_ptr,
    stats_ptr,
    shares_ptr,
    out_ptr,
    SIZE: tl.constexpr,
    DIMS: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Put the shares of `_mixed_kernel` together, for one head of one query."""
    row = tl.program_id(0).to(tl.int64)
    shares = tl.load(shares_ptr + row)
    if shares > 1:
        splits = tl.arange(0, SPLITS)
        dims = tl.arange(0, DIMS)
        used = splits < shares
        at = row * SPLITS + splits
        best = tl.load(stats_ptr + at * 2, mask=used, other=LEAST_SCORE)
        total = tl.load(stats_ptr + at * 2 + 1, mask=used, other=0.0)
        weights = tl.where(used, tl.exp2(best - tl.max(best, 0)), 0.0)
        sums = tl.load(sums_ptr + at[:, None] * DIMS + dims[None, :], mask=used[:, None], other=0.0)
        result = tl.sum(sums * weights[:, None], 0) / tl.sum(weights * total, 0)
        tl.store(out_ptr + row * SIZE + dims, result.to(out_ptr.dtype.element_ty), mask=dims < SIZE)


def _splits(programs: int, processors: int) -> int:
    """Shares into which the keys of a sequence are cut so that the device is full: a power of two."""
    wanted = 1
    while wanted < _MAX_SPLITS and programs * wanted < 2 * processors:
        wanted *= 2
    return wanted


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
) -> torch.Tensor:
    """Attention of one new token a sequence over its pages; the new key and value are written there too.

    Args:
        query: [sequences, heads, size].
        new_key: [sequences, key heads, size].
        new_value: the same.
        key_cache: [slots, key heads, size], rows contiguous.
        value_cache: the same.
        pages: int32 [sequences, most pages], in units of `page_size` slots.
        key_ends: int32 [sequences + 1], running total of tokens with the new one; a sequence of none is padding.
        page_size: tokens of a page.
        scale: of the scores.
        processors: of the device.

    Returns:
        [sequences, heads, size].
    """
    count, heads, size = query.shape
    kv_heads = new_key.shape[1]
    dims = triton.next_power_of_2(size)
    splits = _splits(count * kv_heads, processors)
    out = query.new_empty(count, heads, size)
    sums = query.new_empty((count, heads, splits, dims) if splits > 1 else (1,), dtype=torch.float32)
    stats = query.new_empty((count, heads, splits, 2) if splits > 1 else (1,), dtype=torch.float32)
    _decode_kernel[(count, kv_heads, splits)](
        query,
        new_key,
        new_value,
        key_cache,
        value_cache,
        pages,
        key_ends,
        out,
        sums,
        stats,
        scale * LOG2_E,
        query.stride(0),
        query.stride(1),
        new_key.stride(0),
        new_key.stride(1),
        new_value.stride(0),
        new_value.stride(1),
        key_cache.stride(0),
        pages.stride(0),
        HEADS=heads,
        GROUP=heads // kv_heads,
        SIZE=size,
        PAGE=page_size,
        ROWS=max(_MIN_ROWS, triton.next_power_of_2(heads // kv_heads)),
        DIMS=dims,
        TILE=_DECODE_TOKENS,
        SPLITS=splits,
        num_warps=4,
        num_stages=3,
    )
    if splits > 1:
        _join_kernel[(count, heads)](
            sums,
            stats,
            key_ends,
            out,
            HEADS=heads,
            SIZE=size,
            DIMS=dims,
            TILE=_DECODE_TOKENS,
            SPLITS=splits,
            num_warps=4,
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
) -> torch.Tensor:
    """Causal attention of packed sequences of any lengths; the last query of each sees all its keys.

    Args:
        query: [queries, heads, size].
        key: the cache, [slots, key heads, size].
        value: the same.
        slots: int64, the slot of each key of each sequence, end to end.
        query_ends: int32 [sequences + 1], running total of queries; sequences of none may follow the others.
        key_ends: int32 [sequences + 1], running total of keys.
        scale: of the scores.
        most_queries: of a sequence; those with more are left out, their rows are zero.
        split_keys: several programs share the keys of a query, which pays where contexts are long.

    Returns:
        [queries, heads, size]; rows past the last query are zero.
    """
    queries, heads, size = query.shape
    kv_heads = key.shape[1]
    width = triton.next_power_of_2(heads // kv_heads)
    rows, dims = max(_MIXED_ROWS, width), triton.next_power_of_2(size)
    count = query_ends.shape[0] - 1
    out = query.new_zeros(queries, heads, size)
    splits = _MIXED_SPLITS if split_keys else 1
    sums = query.new_empty((queries, heads, splits, dims) if split_keys else (1,), dtype=torch.float32)
    stats = query.new_empty((queries, heads, splits, 2) if split_keys else (1,), dtype=torch.float32)
    shares = torch.zeros((queries, heads) if split_keys else (1,), dtype=torch.int32, device=query.device)
    _mixed_kernel[(queries // (rows // width) + count, kv_heads, splits)](
        query,
        key,
        value,
        slots,
        query_ends,
        key_ends,
        out,
        sums,
        stats,
        shares,
        count,
        most_queries,
        scale * LOG2_E,
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
        num_warps=4,
        num_stages=_mixed_stages(query.device, rows, dims),
    )
    if split_keys:
        _join_mixed_kernel[(queries * heads,)](
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
