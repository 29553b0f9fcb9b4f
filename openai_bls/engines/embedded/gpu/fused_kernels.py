"""Triton kernels for what transformers does in several small operations, rounded where transformers rounds."""

# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-not-found"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from openai_bls.engines.embedded.gpu import dependent_launch
from openai_bls.engines.embedded.gpu.dependent_launch import start_next, wait


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
def _silu_mul_kernel(x_ptr, out_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
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
    q_token,
    q_head,
    k_token,
    k_head,
    angle_token,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """All heads of one token: rows of the block are heads, queries first."""
    token = tl.program_id(0).to(tl.int64)
    rows = tl.arange(0, WIDTH)
    columns = tl.arange(0, BLOCK)
    in_half = columns < HALF
    is_q = rows < HEADS
    is_k = (rows >= HEADS) & (rows < HEADS + KV_HEADS)
    kv_row = tl.where(is_k, rows - HEADS, 0)
    q_at = token * q_token + rows[:, None] * q_head + columns[None, :]
    k_at = token * k_token + kv_row[:, None] * k_head + columns[None, :]
    q_mask = is_q[:, None] & in_half[None, :]
    k_mask = is_k[:, None] & in_half[None, :]
    left = tl.load(q_ptr + q_at, mask=q_mask, other=0.0) + tl.load(k_ptr + k_at, mask=k_mask, other=0.0)
    right = tl.load(q_ptr + q_at + HALF, mask=q_mask, other=0.0) + tl.load(k_ptr + k_at + HALF, mask=k_mask, other=0.0)
    kind = q_out_ptr.dtype.element_ty
    angles = token * angle_token + columns
    cos_l = tl.load(cos_ptr + angles, mask=in_half, other=0.0)[None, :].to(tl.float32)
    sin_l = tl.load(sin_ptr + angles, mask=in_half, other=0.0)[None, :].to(tl.float32)
    cos_r = tl.load(cos_ptr + angles + HALF, mask=in_half, other=0.0)[None, :].to(tl.float32)
    sin_r = tl.load(sin_ptr + angles + HALF, mask=in_half, other=0.0)[None, :].to(tl.float32)
    left = left.to(tl.float32)
    right = right.to(tl.float32)
    new_left = (left * cos_l).to(kind).to(tl.float32) + (-right * sin_l).to(kind).to(tl.float32)
    new_right = (right * cos_r).to(kind).to(tl.float32) + (left * sin_r).to(kind).to(tl.float32)
    q_to = (token * HEADS + rows[:, None]) * 2 * HALF + columns[None, :]
    k_to = (token * KV_HEADS + kv_row[:, None]) * 2 * HALF + columns[None, :]
    tl.store(q_out_ptr + q_to, new_left.to(kind), mask=q_mask)
    tl.store(q_out_ptr + q_to + HALF, new_right.to(kind), mask=q_mask)
    tl.store(k_out_ptr + k_to, new_left.to(kind), mask=k_mask)
    tl.store(k_out_ptr + k_to + HALF, new_right.to(kind), mask=k_mask)


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
        gate_up, out, SIZE=size, BLOCK=block, num_warps=4
    )
    return out


def rotary(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary position embedding of q and k, [1, heads, tokens, size]; cos and sin are [1, tokens, size].

    `unsqueeze_dim` is there because transformers has it; only 1 is meant.
    """
    _, heads, tokens, size = q.shape
    kv_heads = k.shape[1]
    q_out = q.new_empty(1, tokens, heads, size)
    k_out = k.new_empty(1, tokens, kv_heads, size)
    _rotary_kernel[(tokens,)](
        q,
        k,
        cos,
        sin,
        q_out,
        k_out,
        q.stride(2),
        q.stride(1),
        k.stride(2),
        k.stride(1),
        cos.stride(1),
        HEADS=heads,
        KV_HEADS=kv_heads,
        HALF=size // 2,
        WIDTH=triton.next_power_of_2(heads + kv_heads),
        BLOCK=triton.next_power_of_2(size // 2),
        num_warps=4,
    )
    return q_out.transpose(1, 2), k_out.transpose(1, 2)
