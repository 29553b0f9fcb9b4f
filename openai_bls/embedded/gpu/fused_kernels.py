"""Triton kernels for what transformers does in several small operations, rounded where transformers rounds."""

# ruff: noqa: ANN001, ANN202, N803, PLR0124
# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-not-found"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from openai_bls.embedded.gpu import dependent_launch
from openai_bls.embedded.gpu.attention_kernels import largest
from openai_bls.embedded.gpu.attention_programs import narrowed
from openai_bls.embedded.gpu.dependent_launch import start_next, wait
from openai_bls.engines.not_finite import NOT_FINITE


@triton.jit
def _rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    sum_ptr,
    out_ptr,
    epsilon,
    x_row,
    residual_row,
    ADD: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One row; with ADD, of the sum with a row of the residual stream, which is written as well."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < SIZE
    if DEPENDENT:
        start_next()
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0)
    if DEPENDENT:
        wait()
    x = tl.load(x_ptr + row * x_row + columns, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(residual_ptr + row * residual_row + columns, mask=mask, other=0.0).to(tl.float32)
        total = x.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + row * SIZE + columns, total, mask=mask)
        x = total.to(tl.float32)
    scaled = x * tl.rsqrt(tl.sum(x * x, 0) / SIZE + epsilon)
    rounded = scaled.to(out_ptr.dtype.element_ty).to(tl.float32)
    tl.store(out_ptr + row * SIZE + columns, (rounded * weight).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _silu_mul_kernel(x_ptr, out_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    if DEPENDENT:
        start_next()
        wait()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < SIZE
    gate = tl.load(x_ptr + row * 2 * SIZE + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * SIZE + SIZE + columns, mask=mask, other=0.0).to(tl.float32)
    active = (gate / (1.0 + tl.exp(-gate))).to(out_ptr.dtype.element_ty).to(tl.float32)
    tl.store(out_ptr + row * SIZE + columns, (active * up).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _rotary_kernel(
    q_ptr,
    k_ptr,
    cos_ptr,
    sin_ptr,
    q_out_ptr,
    k_out_ptr,
    v_ptr,
    v_out_ptr,
    slots_ptr,
    q_token,
    q_head,
    k_token,
    k_head,
    v_token,
    v_head,
    angle_token,
    k_out_row,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    CACHED: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """All heads of one token: rows of the block are heads, queries first.

    With CACHED, the keys and the values go to the token's slot of a cache.
    """
    token = tl.program_id(0).to(tl.int64)
    rows = tl.arange(0, WIDTH)
    columns = tl.arange(0, BLOCK)
    in_half = columns < HALF
    is_k = (rows >= HEADS) & (rows < HEADS + KV_HEADS)
    kv_row = tl.where(is_k, rows - HEADS, 0)
    q_at = token * q_token + rows[:, None] * q_head + columns[None, :]
    k_at = token * k_token + kv_row[:, None] * k_head + columns[None, :]
    q_mask = (rows < HEADS)[:, None] & in_half[None, :]
    k_mask = is_k[:, None] & in_half[None, :]
    left = tl.load(q_ptr + q_at, mask=q_mask, other=0.0) + tl.load(k_ptr + k_at, mask=k_mask, other=0.0)
    right = tl.load(q_ptr + q_at + HALF, mask=q_mask, other=0.0) + tl.load(k_ptr + k_at + HALF, mask=k_mask, other=0.0)
    kind = q_out_ptr.dtype.element_ty
    angles = token * angle_token + columns
    cos_l = tl.load(cos_ptr + angles, mask=in_half, other=0.0)[None, :].to(tl.float32)
    sin_l = tl.load(sin_ptr + angles, mask=in_half, other=0.0)[None, :].to(tl.float32)
    cos_r = tl.load(cos_ptr + angles + HALF, mask=in_half, other=0.0)[None, :].to(tl.float32)
    sin_r = tl.load(sin_ptr + angles + HALF, mask=in_half, other=0.0)[None, :].to(tl.float32)
    left, right = left.to(tl.float32), right.to(tl.float32)
    new_left = (left * cos_l).to(kind).to(tl.float32) + (-right * sin_l).to(kind).to(tl.float32)
    new_right = (right * cos_r).to(kind).to(tl.float32) + (left * sin_r).to(kind).to(tl.float32)
    q_to = (token * HEADS + rows[:, None]) * 2 * HALF + columns[None, :]
    out_row = tl.load(slots_ptr + token).to(tl.int64) if CACHED else token
    k_to = out_row * k_out_row + kv_row[:, None] * 2 * HALF + columns[None, :]
    k_kind: tl.constexpr = k_out_ptr.dtype.element_ty
    tl.store(q_out_ptr + q_to, new_left.to(kind), mask=q_mask)
    tl.store(q_out_ptr + q_to + HALF, new_right.to(kind), mask=q_mask)
    tl.store(k_out_ptr + k_to, narrowed(new_left.to(kind), k_kind, LARGEST), mask=k_mask)
    tl.store(k_out_ptr + k_to + HALF, narrowed(new_right.to(kind), k_kind, LARGEST), mask=k_mask)
    if CACHED:
        v_at = v_ptr + token * v_token + kv_row[:, None] * v_head + columns[None, :]
        left = tl.load(v_at, mask=k_mask, other=0.0)
        right = tl.load(v_at + HALF, mask=k_mask, other=0.0)
        tl.store(v_out_ptr + k_to, narrowed(left, k_kind, LARGEST), mask=k_mask)
        tl.store(v_out_ptr + k_to + HALF, narrowed(right, k_kind, LARGEST), mask=k_mask)


@triton.jit
def _angles_kernel(position_ptr, frequency_ptr, cos_ptr, sin_ptr, scaling, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """Cosine and sine of one token's angles, which are the same for both halves of a head."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < HALF
    frequency = tl.load(frequency_ptr + columns, mask=mask, other=0.0)
    angle = tl.load(position_ptr + token).to(tl.float32) * frequency
    cos = (tl.cos(angle) * scaling).to(cos_ptr.dtype.element_ty)
    sin = (tl.sin(angle) * scaling).to(sin_ptr.dtype.element_ty)
    to = token * 2 * HALF + columns
    tl.store(cos_ptr + to, cos, mask=mask)
    tl.store(cos_ptr + to + HALF, cos, mask=mask)
    tl.store(sin_ptr + to, sin, mask=mask)
    tl.store(sin_ptr + to + HALF, sin, mask=mask)


@triton.jit(do_not_specialize=["count"])
def _carry_over_kernel(ids_ptr, carried_ptr, previous_ptr, count, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = place < count
    row = tl.load(carried_ptr + place, mask=mask, other=-1)
    token = tl.maximum(tl.load(previous_ptr + row, mask=row >= 0, other=0), 0)
    tl.store(ids_ptr + place, token, mask=row >= 0)


@triton.jit
def _first_highest(values, places):
    """The highest of `values`, and the least of `places` that it is at."""
    highest = tl.max(values, 0)
    return highest, tl.min(tl.where(values == highest, places, 2147483647), 0)


@triton.jit(do_not_specialize=["size", "row_stride"])
def _argmax_kernel(
    x_ptr,
    out_ptr,
    values_ptr,
    places_ptr,
    counters_ptr,
    size,
    row_stride,
    NOT_FINITE: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A share of one row; the last program of a row to arrive puts the shares together.

    A NaN counts as infinity, and an infinite maximum has the place NOT_FINITE.
    """
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    share = tl.cdiv(tl.cdiv(size, BLOCK), SPLITS) * BLOCK
    first = split * share
    last = tl.minimum(size, first + share)
    columns = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    places = tl.minimum(first + columns, size - 1)
    for start in range(first, last, BLOCK):
        place = start + columns
        x = tl.load(x_ptr + row * row_stride + place, mask=place < last, other=float("-inf")).to(tl.float32)
        x = tl.where(x == x, x, float("inf"))
        higher = x > best
        best = tl.where(higher, x, best)
        places = tl.where(higher, place, places)
    highest, found = _first_highest(best, places)
    tl.store(values_ptr + row * SPLITS + split, highest)
    tl.store(places_ptr + row * SPLITS + split, found)
    tl.debug_barrier()  # so that both are written
    if tl.atomic_add(counters_ptr + row, 1, sem="acq_rel") == SPLITS - 1:
        tl.store(counters_ptr + row, 0)
        splits = row * SPLITS + tl.arange(0, SPLITS)
        highest, found = _first_highest(tl.load(values_ptr + splits), tl.load(places_ptr + splits))
        tl.store(out_ptr + row, tl.where(tl.abs(highest) < float("inf"), found, NOT_FINITE))


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """`weight * x / rms(x)` over the last dimension, rounded as transformers does."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _norm_rows(x, None, weight, epsilon, None, out)
    return out


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`residual + x`, and `rms_norm` of that."""
    total, out = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    _norm_rows(x, residual, weight, epsilon, total, out)
    return total, out


def _norm_rows(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    epsilon: float,
    total: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    size = x.shape[-1]
    rows = x.reshape(-1, size)
    residual = rows if residual is None else residual.reshape(-1, size)
    _rms_norm_kernel[(rows.shape[0],)](
        rows,
        residual,
        weight,
        out if total is None else total,
        out,
        epsilon,
        rows.stride(0),
        residual.stride(0),
        ADD=total is not None,
        SIZE=size,
        BLOCK=triton.next_power_of_2(size),
        num_warps=8,
        **dependent_launch.options(x.device),
    )


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up` of [..., 2 * size], contiguous; returns [..., size]."""
    size = gate_up.shape[-1] // 2
    out = gate_up.new_empty(*gate_up.shape[:-1], size)
    block = min(1024, triton.next_power_of_2(size))
    _silu_mul_kernel[(gate_up.numel() // (2 * size), triton.cdiv(size, block))](
        gate_up, out, SIZE=size, BLOCK=block, num_warps=4, **dependent_launch.options(gate_up.device)
    )
    return out


def rotary(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary position embedding of q and k, [1, heads, tokens, size]; cos and sin are [1, tokens, size].

    `unsqueeze_dim` is there because transformers has it; only 1 is meant.
    """
    k_out = k.new_empty(k.shape[2], k.shape[1], k.shape[3])
    q_out = _rotate(q[0].transpose(0, 1), k[0].transpose(0, 1), (cos[0], sin[0]), k_out)
    return q_out.transpose(0, 1).unsqueeze(0), k_out.transpose(0, 1).unsqueeze(0)


def rotary_to_cache(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    angles: tuple[torch.Tensor, torch.Tensor],
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
) -> torch.Tensor:
    """Rotary position embedding of queries, and of keys that go to a cache with their values.

    Args:
        q: [tokens, heads, size].
        k: [tokens, key heads, size].
        v: [tokens, key heads, size].
        angles: cosine and sine, [tokens, size].
        key_cache: [slots, key heads, size], rows contiguous; in the type of `k` or in FP8.
        value_cache: [slots, key heads, size], rows contiguous; in the type of `key_cache`.
        slots: int64, the slot of each token.

    Returns:
        The queries.
    """
    return _rotate(q, k, angles, key_cache, v, value_cache, slots)


def _rotate(
    q: torch.Tensor,
    k: torch.Tensor,
    angles: tuple[torch.Tensor, torch.Tensor],
    k_out: torch.Tensor,
    v: torch.Tensor | None = None,
    v_out: torch.Tensor | None = None,
    slots: torch.Tensor | None = None,
) -> torch.Tensor:
    cos, sin = angles
    tokens, heads, size = q.shape
    kv_heads = k.shape[1]
    q_out = q.new_empty(q.shape)
    v = k if v is None else v
    _rotary_kernel[(tokens,)](
        q,
        k,
        cos,
        sin,
        q_out,
        k_out,
        v,
        v_out,
        slots,
        q.stride(0),
        q.stride(1),
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        cos.stride(0),
        k_out.stride(0),
        HEADS=heads,
        KV_HEADS=kv_heads,
        HALF=size // 2,
        WIDTH=triton.next_power_of_2(heads + kv_heads),
        BLOCK=triton.next_power_of_2(size // 2),
        CACHED=slots is not None,
        LARGEST=largest(k_out.dtype),
        num_warps=4,
    )
    return q_out


def angles(
    positions: torch.Tensor, frequencies: torch.Tensor, scaling: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of rotary position embedding, [..., 2 * frequencies].

    Args:
        positions: integers, contiguous.
        frequencies: float32 [frequencies].
        scaling: factor of cosine and sine.
        dtype: data type of cosine and sine.
    """
    half = len(frequencies)
    shape = (*positions.shape, 2 * half)
    cos, sin = (torch.empty(shape, dtype=dtype, device=positions.device) for _ in range(2))
    _angles_kernel[(positions.numel(),)](
        positions, frequencies, cos, sin, scaling, HALF=half, BLOCK=triton.next_power_of_2(half), num_warps=1
    )
    return cos, sin


def carry_over(token_ids: torch.Tensor, rows: torch.Tensor, previous: torch.Tensor) -> None:
    """Put tokens of the step before into a step's inputs.

    Args:
        token_ids: int32 [1, tokens], contiguous; written.
        rows: int32, at least as many: the index in `previous` of each, or -1 for one that stays as it is.
        previous: int32, the tokens of the step before; negative ones become 0.
    """
    count = token_ids.shape[1]
    _carry_over_kernel[(triton.cdiv(count, 256),)](token_ids, rows, previous, count, BLOCK=256, num_warps=4)


_ARGMAX_PROGRAMS = 512  # that fill a GPU
_ARGMAX_SPLITS = 64  # shares of a row at most


def argmax(x: torch.Tensor, out: torch.Tensor, counters: torch.Tensor) -> None:
    """Index of the highest number of each row, the first of several; `NOT_FINITE` if that is infinite or one is NaN.

    Args:
        x: [rows, size], a row's numbers contiguous.
        out: int32 [rows], contiguous; written.
        counters: int32, a zero for each row, which are zeros again afterwards; of one stream.
    """
    rows, size = x.shape
    splits = max(1, min(_ARGMAX_SPLITS, triton.next_power_of_2(triton.cdiv(_ARGMAX_PROGRAMS, max(1, rows)))))
    values = x.new_empty((rows, splits), dtype=torch.float32)
    _argmax_kernel[(rows, splits)](
        x,
        out,
        values,
        torch.empty_like(values, dtype=torch.int32),
        counters,
        size,
        x.stride(0),
        NOT_FINITE=NOT_FINITE,
        SPLITS=splits,
        BLOCK=2048,
        num_warps=8,
    )
