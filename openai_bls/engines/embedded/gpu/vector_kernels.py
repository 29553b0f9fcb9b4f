"""Triton kernels for linear layers of one token: the product of a vector and a matrix.

One sequence decodes as fast as the weights can be read. Libraries' matrix products reach 75 to 85 % of a GPU's memory
bandwidth there, these 90 to 95 %, and what follows the product (scale, bias, gate) is done in the same launch. Each
program sums whole rows of the matrix in float32, so weights in FP8 meet an input that is not rounded.
"""

# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-not-found"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from openai_bls.engines.embedded.gpu.push_kernels import Exchange, push


@triton.jit
def _vector_kernel(
    x_ptr,
    weight_ptr,
    scale_ptr,
    bias_ptr,
    out_ptr,
    addresses,
    turns_ptr,
    place,
    outputs,
    size,
    SCALED: tl.constexpr,
    BIAS: tl.constexpr,
    GATED: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
):
    """ROWS outputs. With GATED, the matrix holds the rows of the gate and then those of the values it is applied to.

    With several RANKS, the outputs go to all others as well (see `push_kernels`).
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    in_rows = row < outputs
    columns = tl.arange(0, BLOCK)
    turn = tl.load(turns_ptr) + 1 if RANKS > 1 else 0
    at = weight_ptr + tl.where(in_rows, row, 0).to(tl.int64)[:, None] * size
    further = outputs.to(tl.int64) * size
    sums = tl.zeros([ROWS, BLOCK], tl.float32)
    values = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(0, size, BLOCK):
        column = start + columns
        if EVEN:
            x = tl.load(x_ptr + column).to(tl.float32)[None, :]
            sums += tl.load(at + column[None, :], eviction_policy="evict_first").to(tl.float32) * x
            if GATED:
                values += tl.load(at + further + column[None, :], eviction_policy="evict_first").to(tl.float32) * x
        else:
            mask = column < size
            x = tl.load(x_ptr + column, mask=mask, other=0.0).to(tl.float32)[None, :]
            sums += tl.load(at + column[None, :], mask=mask[None, :], other=0.0).to(tl.float32) * x
            if GATED:
                values += tl.load(at + further + column[None, :], mask=mask[None, :], other=0.0).to(tl.float32) * x
    kind = out_ptr.dtype.element_ty
    result = tl.sum(sums, 1)
    if SCALED:
        result *= tl.load(scale_ptr + row, mask=in_rows, other=0.0)
    if BIAS:
        result += tl.load(bias_ptr + row, mask=in_rows, other=0.0).to(tl.float32)
    if GATED:
        value = tl.sum(values, 1)
        if SCALED:
            value *= tl.load(scale_ptr + outputs + row, mask=in_rows, other=0.0)
        if BIAS:
            value += tl.load(bias_ptr + outputs + row, mask=in_rows, other=0.0).to(tl.float32)
        gate = result.to(kind).to(tl.float32)
        active = (gate / (1.0 + tl.exp(-gate))).to(kind).to(tl.float32)
        result = active * value.to(kind).to(tl.float32)
    tl.store(out_ptr + row, result.to(kind), mask=in_rows)
    if RANKS > 1:
        push(result.to(kind), turn, addresses, place, row, in_rows, RANK, RANKS)


TUNED = {(2, False): (1, 256, 1), (2, True): (1, 512, 2), (1, False): (2, 512, 1), (1, True): (1, 512, 1)}
"""Bytes of a weight, gated → rows per program, block of columns, warps.

The fastest on an H200 for the layers of a 7B: in half precision of rows of 1 to 8, blocks of 256 to 2,048 and 1 to 8
warps, in FP8 of seven of these.
"""


def _product(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    scale: torch.Tensor | None,
    exchange: Exchange | None = None,
    *,
    gated: bool,
) -> torch.Tensor:
    outputs, size = weight.shape
    rows, block, warps = TUNED[min(weight.itemsize, 2), gated]
    if gated:
        outputs //= 2
    out = x.new_empty(*x.shape[:-1], outputs)
    _vector_kernel[(triton.cdiv(outputs, rows),)](
        x,
        weight,
        weight if scale is None else scale,
        weight if bias is None else bias,
        out,
        (0,) if exchange is None else exchange.addresses,
        None if exchange is None else exchange.turns,
        0 if exchange is None else exchange.turns.numel() * outputs,
        outputs,
        size,
        SCALED=scale is not None,
        BIAS=bias is not None,
        GATED=gated,
        EVEN=size % block == 0,
        ROWS=rows,
        BLOCK=block,
        RANK=0 if exchange is None else exchange.rank,
        RANKS=1 if exchange is None else exchange.size,
        num_warps=warps,
        num_stages=3,
    )
    return out


def is_vector(x: torch.Tensor) -> bool:
    """True if `x` [..., size] is one contiguous row."""
    return bool(x.numel() == x.shape[-1] and x.is_contiguous())


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    scale: torch.Tensor | None = None,
    exchange: Exchange | None = None,
) -> torch.Tensor:
    """`torch.nn.functional.linear` of one row.

    Args:
        x: [..., size], for which `is_vector` is true.
        weight: [outputs, size], contiguous.
        bias: [outputs].
        scale: float32 with a number for each output, which its row of `weight` is multiplied by.
        exchange: with the ranks to which the outputs are pushed, as the row 0 of a sum.

    Returns:
        [..., outputs].
    """
    return _product(x, weight, bias, scale, exchange, gated=False)


def gated_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, scale: torch.Tensor | None = None
) -> torch.Tensor:
    """`silu(gate) * up` of one row, rounded where transformers rounds; arguments as of `linear`.

    Args:
        x: [..., size], for which `is_vector` is true.
        weight: [2 * outputs, size], the gate's rows first.
        bias: [2 * outputs].
        scale: 2 * outputs numbers.

    Returns:
        [..., outputs].
    """
    return _product(x, weight, bias, scale, gated=True)
