"""Triton kernels for linear layers of 2 to 16 tokens: tensor cores multiply as fast as the weights can be read.

Libraries' products of so few rows take up to 1.2 times as long as one of one row (in FP8 twice as long), which is what
a draft of a few tokens costs. Tensor cores multiply half precision here, whatever the weights: those in FP8 are
widened, exactly, and the input's rows are not rounded to FP8.
"""

# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-not-found"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from openai_bls_transformers.gpu import dependent_launch, vector_kernels
from openai_bls_transformers.gpu.dependent_launch import start_next, wait
from openai_bls_transformers.gpu.vector_kernels import gated

MOST_ROWS = 16
_OUTPUTS = 16
"""Outputs per program, the fewest that tensor cores take."""


@triton.jit
def _finished(acc, scale_ptr, x_scale, bias_ptr, m, in_m, SCALED: tl.constexpr, BIAS: tl.constexpr):
    """Outputs [m, rows] of sums [shares, m, rows]."""
    result = tl.sum(acc, 0)
    if SCALED:
        result *= tl.load(scale_ptr + m, mask=in_m, other=0.0)[:, None] * x_scale[None, :]
    if BIAS:
        result += tl.load(bias_ptr + m, mask=in_m, other=0.0).to(tl.float32)[:, None]
    return result


@triton.jit
def _rows_kernel(
    x_ptr,
    x_scale_ptr,
    weight_ptr,
    scale_ptr,
    bias_ptr,
    out_ptr,
    rows,
    outputs,
    size,
    SCALED: tl.constexpr,
    BIAS: tl.constexpr,
    GATED: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SHARES: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """OUTPUTS outputs of all rows; SHARES of the inputs are summed side by side."""
    if DEPENDENT:
        start_next()
    m = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    in_m = m < outputs
    n = tl.arange(0, ROWS)
    in_n = n < rows
    share = tl.cdiv(tl.cdiv(size, BLOCK), SHARES) * BLOCK
    firsts = tl.arange(0, SHARES) * share
    at = weight_ptr + tl.where(in_m, m, 0).to(tl.int64)[None, :, None] * size + firsts[:, None, None]
    further = at + outputs.to(tl.int64) * size
    x_at = x_ptr + n[None, None, :] * size + firsts[:, None, None]
    lengths = tl.minimum(size - firsts, share)
    if DEPENDENT:
        wait()
    acc = tl.zeros([SHARES, OUTPUTS, ROWS], tl.float32)
    values = tl.zeros([SHARES, OUTPUTS, ROWS], tl.float32)
    for start in tl.range(0, share, BLOCK, num_stages=STAGES):
        k = start + tl.arange(0, BLOCK)
        inside = k[None, :] < lengths[:, None]
        x = tl.load(x_at + k[None, :, None], mask=inside[:, :, None] & in_n[None, None, :], other=0.0)
        block = tl.load(at + k[None, None, :], mask=inside[:, None, :], other=0.0)
        acc = tl.dot(block.to(x.dtype), x, acc)
        if GATED:
            block = tl.load(further + k[None, None, :], mask=inside[:, None, :], other=0.0)
            values = tl.dot(block.to(x.dtype), x, values)
    x_scale = tl.load(x_scale_ptr + n, mask=in_n, other=0.0) if SCALED else 1.0
    result = _finished(acc, scale_ptr, x_scale, bias_ptr, m, in_m, SCALED, BIAS)
    if GATED:
        value = _finished(values, scale_ptr + outputs, x_scale, bias_ptr + outputs, m, in_m, SCALED, BIAS)
        result = gated(result, value, out_ptr.dtype.element_ty)
    to = out_ptr + n[None, :] * outputs + m[:, None]
    tl.store(to, result.to(out_ptr.dtype.element_ty), mask=in_m[:, None] & in_n[None, :])


_MANY_OUTPUTS = 8192
"""Outputs for which a warp for 16 of them fills a GPU."""
_LONG_ROW = 8192
"""Inputs for which larger blocks pay."""


def _shape(outputs: int, size: int, itemsize: int) -> tuple[int, int, int, int]:
    """Shares, inputs per block, stages and warps: of 24 the fastest for the layers of a 7B and 9 rows on an H200."""
    if outputs >= _MANY_OUTPUTS:
        return (1, 256, 3, 1) if itemsize == 1 else (1, 128, 4, 1)
    if itemsize == 1:
        return (4, 256, 3, 4) if size >= _LONG_ROW else (4, 128, 4, 4)
    return 2, 256, 3, 2


@triton.jit
def _halve_kernel(x_ptr, out_ptr, scale_ptr, x_row, SIZE: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    """One row in units of a power of two with which its largest number lies below 2 ** 15."""
    if DEPENDENT:
        start_next()
        wait()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < SIZE
    x = tl.load(x_ptr + row * x_row + columns, mask=mask, other=0.0).to(tl.float32)
    exponent = tl.max(tl.abs(x), 0).to(tl.int32, bitcast=True) >> 23
    exponent = tl.maximum(exponent - 14, 1)
    tl.store(scale_ptr + row, (exponent << 23).to(tl.float32, bitcast=True))
    unit = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    tl.store(out_ptr + row * SIZE + columns, (x * unit).to(tl.float16), mask=mask)


def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows in float16, and the power of two that each is to be multiplied by.

    Nothing is rounded but numbers 2 ** 28 times smaller than the largest of their row.

    Args:
        x: [rows, size] in half precision, a row's numbers contiguous.

    Returns:
        float16 [rows, size] and float32 [rows].
    """
    rows, size = x.shape
    out = torch.empty(rows, size, dtype=torch.float16, device=x.device)
    scale = torch.empty(rows, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(size)
    warps = min(16, max(4, block // 512))
    _halve_kernel[(rows,)](
        x, out, scale, x.stride(0), SIZE=size, BLOCK=block, num_warps=warps, **dependent_launch.options(x.device)
    )
    return out, scale


def _product(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    scale: torch.Tensor | None,
    *,
    gated: bool,
) -> torch.Tensor:
    outputs, size = weight.shape
    if gated:
        outputs //= 2
    shares, block, stages, warps = _shape(outputs, size, weight.itemsize)
    out = x.new_empty(*x.shape[:-1], outputs)
    rows = x.reshape(-1, size)
    count = len(rows)
    x_scale = None
    if scale is not None:
        rows, x_scale = halves(rows)
    _rows_kernel[(triton.cdiv(outputs, _OUTPUTS),)](
        rows,
        out if x_scale is None else x_scale,
        weight,
        out if scale is None else scale,
        out if bias is None else bias,
        out,
        count,
        outputs,
        size,
        SCALED=scale is not None,
        BIAS=bias is not None,
        GATED=gated,
        ROWS=MOST_ROWS,
        OUTPUTS=_OUTPUTS,
        SHARES=shares,
        BLOCK=block,
        STAGES=stages,
        num_warps=warps,
        **dependent_launch.options(x.device, early=scale is not None),  # after one as small as `_halve_kernel`
    )
    return out


def takes(x: torch.Tensor) -> bool:
    """True if `x` [..., size] is few enough contiguous rows in half precision."""
    return bool(x.numel() <= MOST_ROWS * x.shape[-1] and x.itemsize == 2 and x.is_contiguous())


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, scale: torch.Tensor | None = None
) -> torch.Tensor:
    """`torch.nn.functional.linear` of a few rows, or of one by the kernel for that.

    Args:
        x: [..., size], for which `takes` is true.
        weight: [outputs, size], contiguous.
        bias: [outputs].
        scale: scale of a weight in FP8: float32 with a number for each output, which its row of `weight` is multiplied
            by.

    Returns:
        [..., outputs].
    """
    if vector_kernels.is_vector(x):
        return vector_kernels.linear(x, weight, bias, scale)
    return _product(x, weight, bias, scale, gated=False)


def gated_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, scale: torch.Tensor | None = None
) -> torch.Tensor:
    """`silu(gate) * up` of a few rows, of a weight with the gate's rows first; arguments as of `linear`."""
    if vector_kernels.is_vector(x):
        return vector_kernels.gated_linear(x, weight, bias, scale)
    return _product(x, weight, bias, scale, gated=True)
