"""Triton kernels for what transformers does in several small operations, rounded where transformers rounds."""

# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-not-found"

from __future__ import annotations

from typing import Literal

import torch
import triton
import triton.language as tl

from openai_bls_transformers.gpu import dependent_launch
from openai_bls_transformers.gpu.attention_kernels import largest
from openai_bls_transformers.gpu.attention_programs import narrowed
from openai_bls_transformers.gpu.dependent_launch import start_next, wait


@triton.jit
def _normed(x, weight, epsilon, kind: tl.constexpr, SIZE: tl.constexpr, FORM: tl.constexpr):
    """RMS norm of a row in float32, in the type `kind`."""
    scaled = x * tl.rsqrt(tl.sum(x * x, 0) / SIZE + epsilon)
    if FORM == "early":
        found = (scaled.to(kind).to(tl.float32) * weight).to(kind)
    elif FORM == "late":
        found = (scaled * weight.to(tl.float32)).to(kind)
    else:
        found = (scaled * (1.0 + weight.to(tl.float32))).to(kind)
    return found


@triton.jit
def _rms_norm_kernel(
    x_ptr,
    residual_ptr,
    before_ptr,
    weight_ptr,
    sum_ptr,
    out_ptr,
    epsilon,
    x_row,
    x_part,
    residual_row,
    PARTS: tl.constexpr,
    ADD: tl.constexpr,
    BEFORE: tl.constexpr,
    FORM: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One of the PARTS of a row; with ADD, of the sum with a row of the residual stream, which is written as well.

    With BEFORE, the norm of the row goes into the sum.
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < SIZE
    if DEPENDENT:
        start_next()
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0)
    if BEFORE:
        before = tl.load(before_ptr + columns, mask=mask, other=0.0)
    if DEPENDENT:
        wait()
    kind: tl.constexpr = out_ptr.dtype.element_ty
    at = x_ptr + row // PARTS * x_row + row % PARTS * x_part
    x = tl.load(at + columns, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        if BEFORE:
            x = _normed(x, before, epsilon, kind, SIZE, FORM).to(tl.float32)
        x += tl.load(residual_ptr + row * residual_row + columns, mask=mask, other=0.0).to(tl.float32)
        total = x.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + row * SIZE + columns, total, mask=mask)
        x = total.to(tl.float32)
    tl.store(out_ptr + row * SIZE + columns, _normed(x, weight, epsilon, kind, SIZE, FORM), mask=mask)


@triton.jit
def _gated_kernel(x_ptr, out_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr, GELU: tl.constexpr, DEPENDENT: tl.constexpr):
    """`silu(gate) * up`, or with GELU, by the hyperbolic tangent; the gate is the first half of a row."""
    if DEPENDENT:
        start_next()
        wait()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < SIZE
    gate = tl.load(x_ptr + row * 2 * SIZE + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * SIZE + SIZE + columns, mask=mask, other=0.0).to(tl.float32)
    # With u = sqrt(2 / pi) * (x + 0.044715 * x ** 3), (1 + tanh(u)) / 2 is the sigmoid of 2 * u.
    slope = 1.5957691216057308 * gate * (1.0 + 0.044715 * gate * gate) if GELU else gate
    active = (gate / (1.0 + tl.exp(-slope))).to(out_ptr.dtype.element_ty).to(tl.float32)
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


NormForm = Literal["early", "late", "offset"]
"""How a norm comes to its factors: numbers are rounded before they are multiplied by the weight (Llama), or after it
(gpt-oss); or the factors are 1 more than the weight, and rounded after it (Gemma)."""


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float, form: NormForm = "early") -> torch.Tensor:
    """`weight * x / rms(x)` over the last dimension, rounded as transformers does.

    Args:
        x: any shape; a row's numbers contiguous.
        weight: [size].
        epsilon: number that is added to the mean square.
        form: how it comes to its factors.
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _norm_rows(x, None, weight, epsilon, form, None, None, out)
    return out


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    form: NormForm = "early",
    before: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`residual + x`, and `rms_norm` of that; with `before`, `x` stands for its `rms_norm` with that weight."""
    total, out = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    _norm_rows(x, residual, weight, epsilon, form, before, total, out)
    return total, out


def _norm_rows(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    epsilon: float,
    form: NormForm,
    before: torch.Tensor | None,
    total: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    size = x.shape[-1]
    # Heads of tokens, which lie in a larger row, are no rows at one distance.
    rows = x.reshape(-1, x.shape[-2] if x.dim() > 3 else 1, size)
    residual = rows[:, 0] if residual is None else residual.reshape(-1, size)
    _rms_norm_kernel[(rows.shape[0] * rows.shape[1],)](
        rows,
        residual,
        before,
        weight,
        out if total is None else total,
        out,
        epsilon,
        rows.stride(0),
        rows.stride(1),
        residual.stride(0),
        PARTS=rows.shape[1],
        ADD=total is not None,
        BEFORE=before is not None,
        FORM=form,
        SIZE=size,
        BLOCK=triton.next_power_of_2(size),
        num_warps=8 if size > 512 else 1,
        **dependent_launch.options(x.device),
    )


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up` of [..., 2 * size], contiguous; returns [..., size]."""
    return _gated(gate_up, gelu=False)


def gelu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`gelu(gate) * up` with the hyperbolic tangent, of [..., 2 * size], contiguous; returns [..., size]."""
    return _gated(gate_up, gelu=True)


def _gated(gate_up: torch.Tensor, *, gelu: bool) -> torch.Tensor:
    size = gate_up.shape[-1] // 2
    out = gate_up.new_empty(*gate_up.shape[:-1], size)
    block = min(1024, triton.next_power_of_2(size))
    _gated_kernel[(gate_up.numel() // (2 * size), triton.cdiv(size, block))](
        gate_up, out, SIZE=size, BLOCK=block, GELU=gelu, num_warps=4, **dependent_launch.options(gate_up.device)
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
