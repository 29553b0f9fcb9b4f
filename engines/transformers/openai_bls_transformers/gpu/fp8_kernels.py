"""Products with a matrix in FP8 on a GPU: up to 16 rows by kernels of our own, more by tensor cores in FP8.

Tensor cores multiply FP8 with FP8, so each of more rows is quantized first, with a scale of its own. That product is
PyTorch's `_scaled_mm`, which CUDA graphs capture.
"""

# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-not-found"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from openai_bls_transformers.fp8_numbers import FP8, LARGEST, LEAST_AMAX
from openai_bls_transformers.gpu import few_rows_kernels, fused_kernels


@triton.jit
def _quantize_kernel(x_ptr, out_ptr, scale_ptr, x_row, LARGEST, LEAST, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """One row: its largest number, then the row in units of a 448th of that."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    largest = tl.zeros([BLOCK], tl.float32)
    for start in range(0, SIZE, BLOCK):
        at = start + columns
        x = tl.load(x_ptr + row * x_row + at, mask=at < SIZE, other=0.0)
        largest = tl.maximum(largest, tl.abs(x.to(tl.float32)))
    scale = tl.maximum(tl.max(largest, 0), LEAST) / LARGEST
    tl.store(scale_ptr + row, scale)
    for start in range(0, SIZE, BLOCK):
        at = start + columns
        x = tl.load(x_ptr + row * x_row + at, mask=at < SIZE, other=0.0).to(tl.float32)
        tl.store(out_ptr + row * SIZE + at, (x / scale).to(out_ptr.dtype.element_ty), mask=at < SIZE)


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows in FP8, and the scale of each.

    Args:
        x: [rows, size], a row's numbers contiguous.

    Returns:
        [rows, size] in FP8 and float32 [rows, 1], whose product is about `x`.
    """
    rows, size = x.shape
    out = torch.empty(rows, size, dtype=FP8, device=x.device)
    scale = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    block = min(4096, triton.next_power_of_2(size))
    _quantize_kernel[(rows,)](
        x, out, scale, x.stride(0), LARGEST, LEAST_AMAX, SIZE=size, BLOCK=block, num_warps=8 if block > 1024 else 4
    )
    return out, scale


def scaled_product(
    x: torch.Tensor,
    x_scale: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """`x @ weight.T` of rows with scales, by tensor cores."""
    # Sums in the tensor cores' own precision, whose rounding is far below that of FP8: the products of a 7B are as far
    # from exact ones with it as without (1.7 %), and take 0.8 of the time.
    found: torch.Tensor = torch._scaled_mm(
        x, weight.t(), scale_a=x_scale, scale_b=scale.t(), out_dtype=dtype, use_fast_accum=True
    )
    # Not in the product: cuBLAS has none with a bias for some shapes (7 rows by 18,944 columns on an H200).
    return found if bias is None else found.add_(bias)


def linear(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`torch.nn.functional.linear` with a weight in FP8.

    Args:
        x: [..., size] in bfloat16.
        weight: [outputs, size] in FP8, contiguous.
        scale: float32 [outputs, 1].
        bias: [outputs] in bfloat16.

    Returns:
        [..., outputs].
    """
    if few_rows_kernels.takes(x):
        return few_rows_kernels.linear(x, weight, bias, scale)
    rows, row_scale = quantize_rows(x.reshape(-1, x.shape[-1]))
    return scaled_product(rows, row_scale, weight, scale, bias, x.dtype).view(*x.shape[:-1], -1)


def gated_linear(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`silu(gate) * up`, of a weight with the gate's rows first; arguments as of `linear`."""
    if few_rows_kernels.takes(x):
        return few_rows_kernels.gated_linear(x, weight, bias, scale)
    return fused_kernels.silu_mul(linear(x, weight, scale, bias))
