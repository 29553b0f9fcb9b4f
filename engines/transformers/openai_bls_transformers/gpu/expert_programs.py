"""Triton programs for mixtures of experts: the choice of experts, their two products, and the sum by routing weights.

A pair is a token and one of its experts; pairs are counted token by token. Only weights of chosen experts are read:

- one token: a program for some outputs of one pair, and one for some outputs of the sum of all pairs;
- 2 to 16 tokens: a program for an expert and some outputs, whose columns are the tokens, so no list has to be made;
- more: pairs are put in the order of their experts first, in tiles of one expert each. There are as many tiles as there
  may be, and programs of tiles that are not needed end at once, so that nothing depends on the host.

Products are rounded where transformers' grouped products are, and the sum is in float32.
"""

# ruff: noqa: ANN001, ANN201, ANN202, N803, PLR0915
# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-not-found"

from __future__ import annotations

import triton
import triton.language as tl

from openai_bls_transformers.gpu.dependent_launch import start_next, wait
from openai_bls_transformers.gpu.vector_kernels import gated, number


@triton.jit
def choose_kernel(
    logits_ptr,
    scores_ptr,
    experts_ptr,
    EXPERTS: tl.constexpr,
    BLOCK: tl.constexpr,
    TOP: tl.constexpr,
    TOP_BLOCK: tl.constexpr,
    NORMALIZED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One token. Logits are compared as integers with their places behind them, so no expert is chosen twice."""
    if DEPENDENT:
        start_next()
        wait()
    token = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, BLOCK)
    inside = places < EXPERTS
    logits = tl.load(logits_ptr + token * EXPERTS + places, mask=inside, other=float("-inf")).to(tl.float32)
    highest = tl.max(logits, 0)
    total = tl.sum(tl.exp(logits - highest), 0)
    bits = logits.to(tl.int32, bitcast=True)
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
    keys = tl.where(inside, ordered * 4294967296 + (BLOCK - 1 - places), -9223372036854775808)
    ranks = tl.arange(0, TOP_BLOCK)
    chosen = tl.zeros([TOP_BLOCK], tl.int64)
    for rank in tl.static_range(TOP):
        best = tl.max(keys, 0)
        chosen = tl.where(ranks == rank, best, chosen)
        keys = tl.where(keys == best, -9223372036854775808, keys)
    ordered = (chosen >> 32).to(tl.int32)
    values = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    in_ranks = ranks < TOP
    scores = tl.where(in_ranks, tl.exp(values - highest) / total, 0.0)
    if NORMALIZED:
        scores = scores / tl.sum(scores, 0)
    to = token * TOP + ranks
    tl.store(scores_ptr + to, scores.to(scores_ptr.dtype.element_ty), mask=in_ranks)
    tl.store(experts_ptr + to, BLOCK - 1 - (chosen & 0xFFFFFFFF), mask=in_ranks)


@triton.jit
def _weighted(rows, scores, kind: tl.constexpr, score_kind: tl.constexpr):
    """Rows rounded to `kind` times routing weights, which are rounded as a product of both types is."""
    product = rows.to(kind).to(tl.float32) * scores.to(tl.float32)
    return product if score_kind == tl.float32 else product.to(kind).to(tl.float32)


@triton.jit
def _clamped(gate, value, alpha, limit, kind: tl.constexpr):
    """`(value + 1) * gate * sigmoid(alpha * gate)` of numbers within `limit`, rounded as by `gated`."""
    everywhere: tl.constexpr = tl.PropagateNan.ALL
    gate = tl.minimum(gate.to(kind).to(tl.float32), limit, propagate_nan=everywhere)
    value = tl.minimum(value.to(kind).to(tl.float32), limit, propagate_nan=everywhere)
    value = tl.maximum(value, -limit, propagate_nan=everywhere)
    slope = (gate * alpha).to(kind).to(tl.float32)
    share = (1.0 / (1.0 + tl.exp(-slope))).to(kind).to(tl.float32)
    return (value + 1.0).to(kind).to(tl.float32) * (gate * share).to(kind).to(tl.float32)


@triton.jit
def _activated(gate, value, alpha, limit, CLAMPED: tl.constexpr, kind: tl.constexpr):
    return _clamped(gate, value, alpha, limit, kind) if CLAMPED else gated(gate, value, kind)


@triton.jit
def _with_bias(sums, bias_ptr, at, inside, kind: tl.constexpr):
    """Sums, rounded to `kind`, and the bias at `at`."""
    return sums.to(kind).to(tl.float32) + tl.load(bias_ptr + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def one_gate_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    experts_ptr,
    out_ptr,
    outputs,
    alpha,
    limit,
    BIAS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    CLAMPED: tl.constexpr,
    WORDS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """ROWS outputs of the gated product of one pair of one token, by words of two numbers."""
    if DEPENDENT:
        start_next()
        wait()
    pair = tl.program_id(1)
    kind: tl.constexpr = out_ptr.dtype.element_ty
    expert = tl.load(experts_ptr + pair).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    in_rows = row < outputs
    columns = tl.arange(0, BLOCK)
    place_of_gate = expert * 2 * outputs + tl.where(in_rows, row, 0) * (2 if INTERLEAVED else 1)
    apart = 1 if INTERLEAVED else outputs
    at = weight_ptr + place_of_gate[:, None] * WORDS
    further = at + apart * WORDS
    gates = tl.zeros([ROWS, BLOCK], tl.float32)
    values = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in tl.static_range(0, WORDS, BLOCK):
        column = start + columns
        inside = column < WORDS
        gate = tl.load(at + column[None, :], mask=inside[None, :], other=0, eviction_policy="evict_first")
        value = tl.load(further + column[None, :], mask=inside[None, :], other=0, eviction_policy="evict_first")
        x = tl.load(x_ptr + column, mask=inside, other=0)
        for place in tl.static_range(2):
            factor = number(x, place, kind)[None, :]
            gates += number(gate, place, kind) * factor
            values += number(value, place, kind) * factor
    gate_sums, value_sums = tl.sum(gates, 1), tl.sum(values, 1)
    if BIAS:
        gate_sums = _with_bias(gate_sums, bias_ptr, place_of_gate, in_rows, kind)
        value_sums = _with_bias(value_sums, bias_ptr, place_of_gate + apart, in_rows, kind)
    result = _activated(gate_sums, value_sums, alpha, limit, CLAMPED, kind)
    tl.store(out_ptr + pair * outputs + row, result.to(kind), mask=in_rows)


@triton.jit
def one_down_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    experts_ptr,
    scores_ptr,
    out_ptr,
    outputs,
    BIAS: tl.constexpr,
    WORDS: tl.constexpr,
    TOP: tl.constexpr,
    TOP_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """ROWS outputs of the weighted sum over all pairs of one token."""
    if DEPENDENT:
        start_next()
        wait()
    kind: tl.constexpr = out_ptr.dtype.element_ty
    ranks = tl.arange(0, TOP_BLOCK)
    in_ranks = ranks < TOP
    experts = tl.load(experts_ptr + ranks, mask=in_ranks, other=0).to(tl.int64)
    scores = tl.load(scores_ptr + ranks, mask=in_ranks, other=0.0)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    in_rows = row < outputs
    columns = tl.arange(0, BLOCK)
    firsts = (experts * outputs * WORDS)[None, :] + (tl.where(in_rows, row, 0) * WORDS)[:, None]
    sums = tl.zeros([ROWS, TOP_BLOCK, BLOCK], tl.float32)
    for start in tl.static_range(0, WORDS, BLOCK):
        column = start + columns
        inside = in_ranks[:, None] & (column < WORDS)[None, :]
        at = weight_ptr + firsts[:, :, None] + column[None, None, :]
        block = tl.load(at, mask=inside[None, :, :], other=0, eviction_policy="evict_first")
        x = tl.load(x_ptr + ranks[:, None] * WORDS + column[None, :], mask=inside, other=0)
        for place in tl.static_range(2):
            sums += number(block, place, kind) * number(x, place, kind)[None, :, :]
    rows = tl.sum(sums, 2)
    if BIAS:
        place_of_bias = (experts * outputs)[None, :] + tl.where(in_rows, row, 0)[:, None]
        rows = _with_bias(rows, bias_ptr, place_of_bias, in_rows[:, None] & in_ranks[None, :], kind)
    products = _weighted(rows, scores[None, :], kind, scores_ptr.dtype.element_ty)
    tl.store(out_ptr + row, tl.sum(products, 1).to(kind), mask=in_rows)


@triton.jit(do_not_specialize=["pairs"])
def count_kernel(experts_ptr, counts_ptr, pairs, BINS: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    """How many pairs of one share go to each expert."""
    if DEPENDENT:
        start_next()
        wait()
    share = tl.program_id(0)
    places = share * BLOCK + tl.arange(0, BLOCK)
    inside = places < pairs
    chosen = tl.load(experts_ptr + places, mask=inside, other=0).to(tl.int32)
    tl.store(counts_ptr + share * BINS + tl.arange(0, BINS), tl.histogram(chosen, BINS, mask=inside))


@triton.jit(do_not_specialize=["pairs", "tiles", "shares"])
def order_kernel(
    experts_ptr,
    counts_ptr,
    order_ptr,
    owners_ptr,
    pairs,
    tiles,
    shares,
    EXPERTS: tl.constexpr,
    BINS: tl.constexpr,
    ROWS: tl.constexpr,
    MOST_SHARES: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """What one share of the pairs has for the tiles of one expert; one program more marks tiles that are not needed.

    `owners` gets the expert of each tile or -1, and `order` its pairs, then `pairs` for columns that are left over.
    """
    if DEPENDENT:
        start_next()
        wait()
    expert, share = tl.program_id(0), tl.program_id(1)
    bins = tl.arange(0, BINS)
    places = share * BLOCK + tl.arange(0, BLOCK)
    inside = places < pairs
    chosen = tl.load(experts_ptr + places, mask=inside, other=EXPERTS).to(tl.int32)
    if MOST_SHARES == 1:
        counts = tl.histogram(chosen, BINS, mask=inside)
        before = 0
    else:
        row = tl.arange(0, MOST_SHARES)[:, None]
        table = tl.load(counts_ptr + row * BINS + bins[None, :], mask=row < shares, other=0)
        counts = tl.sum(table, 0)
        before = tl.sum(tl.where((row < share) & (bins == expert)[None, :], table, 0))
    needed = (counts + ROWS - 1) // ROWS
    first = tl.sum(tl.where(bins < expert, needed, 0), 0)
    if expert < EXPERTS:
        is_own = (chosen == expert).to(tl.int32)
        to = order_ptr + first * ROWS
        tl.store(to + before + tl.cumsum(is_own, 0) - 1, places, mask=is_own != 0)
        if share == 0:
            own = tl.sum(tl.where(bins == expert, needed, 0), 0)
            left = tl.sum(tl.where(bins == expert, counts, 0), 0) + tl.arange(0, ROWS)
            tl.store(to + left, pairs, mask=left < own * ROWS)
            for start in range(0, own, BINS):
                tl.store(owners_ptr + first + start + bins, expert, mask=start + bins < own)
    elif share == 0:
        for start in range(first, tiles, BINS):
            tl.store(owners_ptr + start + bins, -1, mask=start + bins < tiles)


@triton.jit(do_not_specialize=["tokens"])
def products_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    experts_ptr,
    order_ptr,
    owners_ptr,
    out_ptr,
    tokens,
    outputs,
    alpha,
    limit,
    SIZE: tl.constexpr,
    TOP: tl.constexpr,
    TOP_BLOCK: tl.constexpr,
    GATED: tl.constexpr,
    BIAS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    CLAMPED: tl.constexpr,
    ORDERED: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """OUTPUTS outputs of the pairs of one tile. With GATED a row of `x` is a token, else a pair.

    Without ORDERED, a tile is what has the expert of one pair, all tokens; it is done where that pair is the first.
    """
    if DEPENDENT:
        start_next()
        wait()
    blocks = tl.cdiv(outputs, OUTPUTS)
    tile = tl.program_id(0) // blocks
    n = tl.arange(0, ROWS)
    if ORDERED:
        expert = tl.load(owners_ptr + tile)
        needed = expert >= 0
        pair = tl.load(order_ptr + tile * ROWS + n, mask=n < tl.where(needed, ROWS, 0), other=tokens * TOP)
        in_n = pair < tokens * TOP
    else:
        expert = tl.load(experts_ptr + tile).to(tl.int32)
        ranks = tl.arange(0, TOP_BLOCK)
        pairs = n[:, None] * TOP + ranks[None, :]
        inside = (n < tokens)[:, None] & (ranks < TOP)[None, :]
        is_own = tl.load(experts_ptr + pairs, mask=inside, other=-1).to(tl.int32) == expert
        pair = tl.max(tl.where(is_own, pairs, -1), 1)
        in_n = pair >= 0
        needed = tl.min(tl.min(tl.where(is_own, pairs, 2147483647), 1), 0) == tile
    if needed:
        m = (tl.program_id(0) % blocks) * OUTPUTS + tl.arange(0, OUTPUTS)
        in_m = m < outputs
        kind: tl.constexpr = out_ptr.dtype.element_ty
        first = expert.to(tl.int64) * outputs * (2 if GATED else 1)
        place = first + tl.where(in_m, m, 0) * (2 if INTERLEAVED else 1)
        apart = 1 if INTERLEAVED else outputs
        at = weight_ptr + place[:, None] * SIZE
        further = at + apart * SIZE
        rows = tl.where(in_n, pair, 0).to(tl.int64)
        x_at = x_ptr + (rows // TOP if GATED else rows)[None, :] * SIZE
        acc = tl.zeros([OUTPUTS, ROWS], tl.float32)
        values = tl.zeros([OUTPUTS, ROWS], tl.float32)
        for start in tl.range(0, SIZE, BLOCK, num_stages=STAGES):
            k = start + tl.arange(0, BLOCK)
            if SIZE % BLOCK == 0:
                x = tl.load(x_at + k[:, None], mask=in_n[None, :], other=0.0)
                acc = tl.dot(tl.load(at + k[None, :]), x, acc)
                if GATED:
                    values = tl.dot(tl.load(further + k[None, :]), x, values)
            else:
                in_k = k < SIZE
                x = tl.load(x_at + k[:, None], mask=in_n[None, :] & in_k[:, None], other=0.0)
                acc = tl.dot(tl.load(at + k[None, :], mask=in_k[None, :], other=0.0), x, acc)
                if GATED:
                    values = tl.dot(tl.load(further + k[None, :], mask=in_k[None, :], other=0.0), x, values)
        if BIAS:
            acc = _with_bias(acc, bias_ptr, place[:, None], in_m[:, None], kind)
            if GATED:
                values = _with_bias(values, bias_ptr, place[:, None] + apart, in_m[:, None], kind)
        result = _activated(acc, values, alpha, limit, CLAMPED, kind) if GATED else acc
        to = out_ptr + rows[None, :] * outputs + m[:, None]
        tl.store(to, result.to(kind), mask=in_m[:, None] & in_n[None, :])


@triton.jit
def sum_kernel(
    rows_ptr,
    scores_ptr,
    out_ptr,
    SIZE: tl.constexpr,
    TOP: tl.constexpr,
    TOP_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Some outputs of the weighted sum over the pairs of a token."""
    if DEPENDENT:
        start_next()
        wait()
    token = tl.program_id(0).to(tl.int64)
    ranks = tl.arange(0, TOP_BLOCK)
    in_ranks = ranks < TOP
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < SIZE
    at = rows_ptr + (token * TOP + ranks)[:, None] * SIZE + columns[None, :]
    rows = tl.load(at, mask=in_ranks[:, None] & inside[None, :], other=0.0)
    scores = tl.load(scores_ptr + token * TOP + ranks, mask=in_ranks, other=0.0)
    products = _weighted(rows, scores[:, None], out_ptr.dtype.element_ty, scores_ptr.dtype.element_ty)
    tl.store(out_ptr + token * SIZE + columns, tl.sum(products, 0).to(out_ptr.dtype.element_ty), mask=inside)
