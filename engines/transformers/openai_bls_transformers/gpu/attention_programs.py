"""Triton programs of attention that reads the paged cache where it lies; `attention_kernels` launches them.

Keys and values in FP8 are widened to the type of the queries as they are read.

Tokens lie in the cache as rows of [heads, size] at `slot * slot_stride`; a slot comes from a table of pages (decoding)
or from a list with one slot per token (everything else). Rows that the query heads of a key head share are those of one
matrix product.
"""

# ruff: noqa: ANN001, ANN201, N803, N806, PLR0124, PLR0912, PLR0915
# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-not-found"

from __future__ import annotations

import triton
import triton.language as tl

from openai_bls_transformers.gpu.dependent_launch import start_next, wait

LEAST_SCORE = tl.constexpr(-1e30)
LOG2_E = 1.4426950408889634
_LOG2_E = tl.constexpr(LOG2_E)


@triton.jit
def capped(scores, cap, CAPPED: tl.constexpr):
    """Scores, or with CAPPED `cap * tanh(x)`, where a score is `2 * x * log2(e)`."""
    if CAPPED:
        scores = cap - 2.0 * cap / (tl.exp2(scores) + 1.0)
    return scores


@triton.jit
def first_share(best, total, sinks_ptr, head, mask, split, SINKS: tl.constexpr):
    """The running maximum and sum of a softmax before its first key: with SINKS, the first share has the heads' own."""
    if SINKS:
        sink = tl.load(sinks_ptr + head, mask=mask, other=0.0).to(tl.float32) * _LOG2_E
        best = tl.where(split == 0, sink, best)
        total = tl.where(split == 0, total + 1.0, total)
    return best, total


@triton.jit
def add_tile(scores, v, best, total, sums):
    """The running maximum, sum and weighted values of a softmax, with one more tile of keys."""
    higher = tl.maximum(best, tl.max(scores, 1))
    weights = tl.exp2(scores - higher[:, None])
    shrink = tl.exp2(best - higher)
    sums = sums * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
    return higher, total * shrink + tl.sum(weights, 1), sums


@triton.jit
def narrowed(x, kind: tl.constexpr, LARGEST: tl.constexpr):
    """Numbers in the type of the cache, held within `LARGEST` unless that is 0; NaN stays NaN."""
    x = x.to(tl.float32)
    if LARGEST > 0:
        x = tl.where(x == x, tl.minimum(tl.maximum(x, -LARGEST), LARGEST), x)
    return x.to(kind)


@triton.jit
def rotated(x, opposite, cos, sin, in_first_half):
    """Rows with their rotary position embedding, rounded where transformers rounds.

    Args:
        x: rows of one half and the other.
        opposite: rows of the other half and the one: `x` with the halves exchanged.
        cos: cosine of the angles, float32.
        sin: sine of the angles, float32.
        in_first_half: mask of a row's numbers that lie in the first half.
    """
    turned = tl.where(in_first_half, -opposite.to(tl.float32), opposite.to(tl.float32))
    along = (x.to(tl.float32) * cos).to(x.dtype).to(tl.float32)
    return (along + (turned * sin).to(x.dtype).to(tl.float32)).to(x.dtype)


@triton.jit(do_not_specialize=["window"])
def decode_kernel(
    q_ptr,
    new_k_ptr,
    new_v_ptr,
    cos_ptr,
    sin_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    ends_ptr,
    sinks_ptr,
    out_ptr,
    sums_ptr,
    stats_ptr,
    scale,
    cap,
    window,
    q_token,
    q_head,
    new_k_token,
    new_k_head,
    new_v_token,
    new_v_head,
    angle_token,
    slot_stride,
    table_stride,
    ROTATE: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    LEAST_TILES: tl.constexpr,
    LARGEST: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One new token of one sequence, for the query heads that share a key head, over a share of the keys.

    With ROTATE, queries and the new key come without their position. With WINDOWED, the last `window` keys count alone.
    """
    if DEPENDENT:
        start_next()
        wait()
    seq = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(ends_ptr + seq + 1) - tl.load(ends_ptr + seq)
    span = tl.minimum(length, window) if WINDOWED else length
    share = tl.maximum(tl.cdiv(tl.cdiv(span, TILE), SPLITS), LEAST_TILES) * TILE
    first = length - span + split * share
    last = tl.minimum(length, first + share)
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIMS)
    offsets = tl.arange(0, TILE)
    in_size = dims < SIZE
    head = kv_head * GROUP + rows
    q_mask = (rows < GROUP)[:, None] & in_size[None, :]
    token = seq.to(tl.int64)
    q_at = q_ptr + token * q_token + head[:, None] * q_head
    k_at = new_k_ptr + token * new_k_token + kv_head * new_k_head
    q = tl.load(q_at + dims[None, :], mask=q_mask, other=0.0)
    new_k = tl.load(k_at + dims, mask=in_size, other=0.0)
    new_v = tl.load(new_v_ptr + token * new_v_token + kv_head * new_v_head + dims, mask=in_size, other=0.0)
    if ROTATE:
        in_first_half = dims < SIZE // 2
        opposite = tl.where(in_first_half, dims + SIZE // 2, dims - SIZE // 2)
        cos = tl.load(cos_ptr + token * angle_token + dims, mask=in_size, other=0.0).to(tl.float32)
        sin = tl.load(sin_ptr + token * angle_token + dims, mask=in_size, other=0.0).to(tl.float32)
        other_q = tl.load(q_at + opposite[None, :], mask=q_mask, other=0.0)
        other_k = tl.load(k_at + opposite, mask=in_size, other=0.0)
        q = rotated(q, other_q, cos[None, :], sin[None, :], in_first_half[None, :])
        new_k = rotated(new_k, other_k, cos, sin, in_first_half)
    table = table_ptr + token * table_stride
    newest = length - 1
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    best, total = first_share(best, total, sinks_ptr, head, rows < GROUP, split, SINKS)
    sums = tl.zeros([ROWS, DIMS], tl.float32)
    for start in range(first, tl.minimum(last, newest), TILE):
        position = start + offsets
        cached = position < newest
        page = tl.load(table + position // PAGE, mask=cached, other=0).to(tl.int64)
        at = (page * PAGE + position % PAGE) * slot_stride + kv_head * SIZE
        mask = cached[:, None] & in_size[None, :]
        k = tl.load(k_ptr + at[:, None] + dims[None, :], mask=mask, other=0.0).to(q.dtype)
        v = tl.load(v_ptr + at[:, None] + dims[None, :], mask=mask, other=0.0).to(q.dtype)
        scores = capped(tl.dot(q, tl.trans(k)) * scale, cap, CAPPED)
        scores = tl.where(cached[None, :], scores, float("-inf"))
        best, total, sums = add_tile(scores, v, best, total, sums)
    if (newest >= first) & (newest < last):
        page = tl.load(table + newest // PAGE).to(tl.int64)
        at = (page * PAGE + newest % PAGE) * slot_stride + kv_head * SIZE
        tl.store(k_ptr + at + dims, narrowed(new_k, k_ptr.dtype.element_ty, LARGEST), mask=in_size)
        tl.store(v_ptr + at + dims, narrowed(new_v, v_ptr.dtype.element_ty, LARGEST), mask=in_size)
        score = capped(tl.sum(q.to(tl.float32) * new_k.to(tl.float32)[None, :], 1) * scale, cap, CAPPED)
        higher = tl.maximum(best, score)
        weight = tl.exp2(score - higher)
        shrink = tl.exp2(best - higher)
        total = total * shrink + weight
        sums = sums * shrink[:, None] + weight[:, None] * new_v.to(tl.float32)[None, :]
        best = higher
    if (span <= share) & (split == 0):
        result = tl.where((total > 0)[:, None], sums / total[:, None], 0.0)
        to = out_ptr + (token * HEADS + head[:, None]) * SIZE + dims[None, :]
        tl.store(to, result.to(out_ptr.dtype.element_ty), mask=q_mask)
    elif first < last:
        row = (token * HEADS + head) * SPLITS + split
        tl.store(sums_ptr + row[:, None] * DIMS + dims[None, :], sums, mask=(rows < GROUP)[:, None])
        tl.store(stats_ptr + row * 2, best, mask=rows < GROUP)
        tl.store(stats_ptr + row * 2 + 1, total, mask=rows < GROUP)


@triton.jit(do_not_specialize=["window"])
def join_kernel(
    sums_ptr,
    stats_ptr,
    ends_ptr,
    out_ptr,
    window,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    DIMS: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    LEAST_TILES: tl.constexpr,
    WINDOWED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Put the shares of `decode_kernel` together, where there is more than one."""
    if DEPENDENT:
        start_next()
        wait()
    seq = tl.program_id(0)
    row = seq.to(tl.int64) * HEADS + tl.program_id(1)
    length = tl.load(ends_ptr + seq + 1) - tl.load(ends_ptr + seq)
    span = tl.minimum(length, window) if WINDOWED else length
    share = tl.maximum(tl.cdiv(tl.cdiv(span, TILE), SPLITS), LEAST_TILES) * TILE
    if span > share:
        splits = tl.arange(0, SPLITS)
        dims = tl.arange(0, DIMS)
        used = splits * share < span
        best = tl.load(stats_ptr + (row * SPLITS + splits) * 2, mask=used, other=float("-inf"))
        total = tl.load(stats_ptr + (row * SPLITS + splits) * 2 + 1, mask=used, other=0.0)
        weights = tl.where(used, tl.exp2(best - tl.max(best, 0)), 0.0)
        at = sums_ptr + (row * SPLITS + splits)[:, None] * DIMS + dims[None, :]
        sums = tl.load(at, mask=used[:, None], other=0.0)
        result = tl.sum(sums * weights[:, None], 0) / tl.sum(weights * total, 0)
        tl.store(out_ptr + row * SIZE + dims, result.to(out_ptr.dtype.element_ty), mask=dims < SIZE)


@triton.jit(do_not_specialize=["count", "most_queries", "most_shared", "window"])
def mixed_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    slots_ptr,
    query_ends_ptr,
    key_ends_ptr,
    sinks_ptr,
    out_ptr,
    sums_ptr,
    stats_ptr,
    shares_ptr,
    count,
    most_queries,
    most_shared,
    scale,
    cap,
    window,
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
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
):
    """ROWS / WIDTH consecutive queries of one sequence, for the query heads that share a key head.

    With SPLITS above 1, over a share of the keys, but for sequences of more than `most_shared` queries. With WINDOWED,
    each sees the last `window` keys up to its own.
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
    lowest = tl.maximum(past + first + 1 - window, 0) if WINDOWED else 0
    span = end - lowest
    share = span
    if SPLITS > 1:
        shared = tl.maximum(tl.cdiv(tl.cdiv(span, TILE), SPLITS), LEAST_TILES) * TILE
        share = tl.where(queries > most_shared, span, shared)
    begin = lowest + split * share
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
        best, total = first_share(best, total, sinks_ptr, head, is_row, split, SINKS)
        sums = tl.zeros([ROWS, DIMS], tl.float32)
        last = tl.minimum(end, begin + share)
        seen_by_all = begin
        if not WINDOWED:
            # Every query of the block sees all keys of the first tiles.
            seen_by_all = tl.maximum((past + first + 1) // TILE * TILE, begin)
            for start in range(begin, tl.minimum(seen_by_all, last), TILE):
                slot = tl.load(slots_ptr + k0 + start + offsets).to(tl.int64)
                k_at = k_ptr + slot[:, None] * k_slot + kv_head * k_head + dims[None, :]
                v_at = v_ptr + slot[:, None] * v_slot + kv_head * v_head + dims[None, :]
                k = tl.load(k_at, mask=in_size[None, :], other=0.0).to(q.dtype)
                v = tl.load(v_at, mask=in_size[None, :], other=0.0).to(q.dtype)
                scores = capped(tl.dot(q, tl.trans(k)) * scale, cap, CAPPED)
                best, total, sums = add_tile(scores, v, best, total, sums)
        for start in range(seen_by_all, last, TILE):
            position = start + offsets
            present = position < end
            slot = tl.load(slots_ptr + k0 + position, mask=present, other=0).to(tl.int64)
            mask = present[:, None] & in_size[None, :]
            k_at = k_ptr + slot[:, None] * k_slot + kv_head * k_head + dims[None, :]
            v_at = v_ptr + slot[:, None] * v_slot + kv_head * v_head + dims[None, :]
            k = tl.load(k_at, mask=mask, other=0.0).to(q.dtype)
            v = tl.load(v_at, mask=mask, other=0.0).to(q.dtype)
            seen = present[None, :] & (position[None, :] <= (past + token)[:, None])
            if WINDOWED:
                seen &= position[None, :] > (past + token - window)[:, None]
            scores = tl.where(seen, capped(tl.dot(q, tl.trans(k)) * scale, cap, CAPPED), LEAST_SCORE)
            best, total, sums = add_tile(scores, v, best, total, sums)
        row = at * HEADS + head
        if SPLITS > 1:
            if split == 0:
                tl.store(shares_ptr + row, tl.cdiv(span, share) + tl.zeros([ROWS], tl.int32), mask=is_row)
            if share < span:
                part = row * SPLITS + split
                tl.store(sums_ptr + part[:, None] * DIMS + dims[None, :], sums, mask=is_row[:, None])
                tl.store(stats_ptr + part * 2, best, mask=is_row)
                tl.store(stats_ptr + part * 2 + 1, total, mask=is_row)
        if share >= span:
            result = sums / total[:, None]
            tl.store(out_ptr + row[:, None] * SIZE + dims[None, :], result.to(out_ptr.dtype.element_ty), mask=q_mask)


@triton.jit
def join_mixed_kernel(
    sums_ptr,
    stats_ptr,
    shares_ptr,
    out_ptr,
    SIZE: tl.constexpr,
    DIMS: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Put the shares of `mixed_kernel` together, for one head of one query."""
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
