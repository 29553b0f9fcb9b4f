"""Triton kernels for linear layers of one token: the product of a vector and a matrix.

One sequence decodes as fast as the weights can be read. Libraries' matrix products reach 75 to 85 % of a GPU's memory
bandwidth there, these 90 to 95 %, and what follows the product (scale, bias, gate) is done in the same launch. Each
program sums whole rows of the matrix in float32, so weights in FP8 meet an input that is not rounded.

Numbers are read as words of 32 bits, the input beside weights in FP8 as words of 64, and widened in registers: as
numbers they would be taken apart and put together again on their way, which takes as long as multiplying them.
"""

# ruff: noqa: ANN001, ANN201, ANN202, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-not-found"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from openai_bls_transformers.gpu import dependent_launch
from openai_bls_transformers.gpu.dependent_launch import start_next, wait


@triton.jit
def gated(gate, value, kind: tl.constexpr):
    """`silu(gate) * value` of float32, rounded to `kind` where transformers rounds, but for the product."""
    gate = gate.to(kind).to(tl.float32)
    active = (gate / (1.0 + tl.exp(-gate))).to(kind).to(tl.float32)
    return active * value.to(kind).to(tl.float32)


@triton.jit
def _block(at, columns, words, EVEN: tl.constexpr):
    """Words of the rows at `at`; zeros where there is none."""
    if EVEN:
        return tl.load(at + columns[None, :], eviction_policy="evict_first")
    else:
        return tl.load(at + columns[None, :], mask=columns[None, :] < words, other=0, eviction_policy="evict_first")


@triton.jit
def number(words, place: tl.constexpr, kind: tl.constexpr):
    """The number of type `kind` at `place` in each word of 32 bits, in float32."""
    if kind == tl.bfloat16:  # the upper half of a float32
        return (words << 16 if place == 0 else words & -65536).to(tl.float32, bitcast=True)
    bits: tl.constexpr = kind.primitive_bitwidth
    narrow: tl.constexpr = tl.int8 if bits == 8 else tl.int16
    return (words >> bits * place).to(narrow).to(kind, bitcast=True).to(tl.float32)


@triton.jit
def _four_numbers(words, kind: tl.constexpr, NATIVE: tl.constexpr):
    """The numbers in FP8 in each word, in float32."""
    if NATIVE:  # by pairs, for which the compiler would take the words apart and put other pairs together
        return tl.inline_asm_elementwise(
            """
            {
                .reg .b16 low, high, a, b, c, d;
                .reg .b32 first, second;
                mov.b32 {low, high}, $4;
                cvt.rn.f16x2.e4m3x2 first, low;
                cvt.rn.f16x2.e4m3x2 second, high;
                mov.b32 {a, b}, first;
                mov.b32 {c, d}, second;
                cvt.f32.f16 $0, a;
                cvt.f32.f16 $1, b;
                cvt.f32.f16 $2, c;
                cvt.f32.f16 $3, d;
            }
            """,
            "=f,=f,=f,=f,r",
            [words],
            dtype=(tl.float32, tl.float32, tl.float32, tl.float32),
            is_pure=True,
            pack=1,
        )
    return number(words, 0, kind), number(words, 1, kind), number(words, 2, kind), number(words, 3, kind)


@triton.jit
def _added(sums, block, x, weights: tl.constexpr, inputs: tl.constexpr, NATIVE: tl.constexpr):
    """`sums` and the products of a block of weights [rows, words] with as many numbers of the input."""
    if weights.primitive_bitwidth == 8:
        a, b, c, d = _four_numbers(block, weights, NATIVE)
        first, second = x.to(tl.int32), (x >> 32).to(tl.int32)
        sums += a * number(first, 0, inputs)[None, :]
        sums += b * number(first, 1, inputs)[None, :]
        sums += c * number(second, 0, inputs)[None, :]
        sums += d * number(second, 1, inputs)[None, :]
    else:
        sums += number(block, 0, weights) * number(x, 0, inputs)[None, :]
        sums += number(block, 1, weights) * number(x, 1, inputs)[None, :]
    return sums


@triton.jit
def _finished(sums, scale_ptr, bias_ptr, row, in_rows, SCALED: tl.constexpr, BIAS: tl.constexpr):
    """Outputs of sums [rows, words]."""
    result = tl.sum(sums, 1)
    if SCALED:
        result *= tl.load(scale_ptr + row, mask=in_rows, other=0.0)
    if BIAS:
        result += tl.load(bias_ptr + row, mask=in_rows, other=0.0).to(tl.float32)
    return result


@triton.jit
def _vector_kernel(
    x_ptr,
    weight_ptr,
    scale_ptr,
    bias_ptr,
    out_ptr,
    outputs,
    words,
    WEIGHTS: tl.constexpr,
    SCALED: tl.constexpr,
    BIAS: tl.constexpr,
    GATED: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    NATIVE: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """ROWS outputs. With GATED, the matrix holds the rows of the gate and then those of the values it is applied to."""
    if DEPENDENT:
        start_next()
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    in_rows = row < outputs
    columns = tl.arange(0, BLOCK)
    if WEIGHTS.primitive_bitwidth == 8:  # two words of a thread side by side, as it loads the input
        columns = tl.max_contiguous(columns, 2)
    at = weight_ptr + tl.where(in_rows, row, 0).to(tl.int64)[:, None] * words
    further = at + outputs.to(tl.int64) * words
    # A block is on its way while the one before is multiplied; the first is before the input is there.
    block = _block(at, columns, words, EVEN)
    if GATED:
        block_of_values = _block(further, columns, words, EVEN)
    if DEPENDENT:
        wait()
    kind = out_ptr.dtype.element_ty
    sums = tl.zeros([ROWS, BLOCK], tl.float32)
    values = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(BLOCK, words, BLOCK):
        following = _block(at, start + columns, words, EVEN)
        if GATED:
            following_values = _block(further, start + columns, words, EVEN)
        x = tl.load(x_ptr + start - BLOCK + columns)
        sums = _added(sums, block, x, WEIGHTS, kind, NATIVE)
        block = following
        if GATED:
            values = _added(values, block_of_values, x, WEIGHTS, kind, NATIVE)
            block_of_values = following_values
    column = (tl.cdiv(words, BLOCK) - 1) * BLOCK + columns
    x = tl.load(x_ptr + column, mask=column < words, other=0)
    sums = _added(sums, block, x, WEIGHTS, kind, NATIVE)
    result = _finished(sums, scale_ptr, bias_ptr, row, in_rows, SCALED, BIAS)
    if GATED:
        values = _added(values, block_of_values, x, WEIGHTS, kind, NATIVE)
        value = _finished(values, scale_ptr + outputs, bias_ptr + outputs, row, in_rows, SCALED, BIAS)
        result = gated(result, value, kind)
    tl.store(out_ptr + row, result.to(kind), mask=in_rows)


_MANY_OUTPUTS = 8192
"""Outputs for which a warp each fills a GPU."""
_LONG_ROW = 4096
"""Words of a row for which four warps share it."""


def _shape(outputs: int, words: int, itemsize: int) -> tuple[int, int, int]:
    """Outputs per program, words per block and warps: of 17 to 19 the fastest for the layers of a 7B on an H200."""
    if outputs >= _MANY_OUTPUTS:
        return (2, 128, 1) if itemsize == 1 else (1, 256, 1)
    return (4, 256, 4) if words <= _LONG_ROW else (1, 512, 4)


_KINDS = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float8_e4m3fn: tl.float8e4nv}


def _product(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    scale: torch.Tensor | None,
    *,
    gated: bool,
) -> torch.Tensor:
    outputs, words = weight.shape[0], weight.shape[1] * weight.itemsize // 4
    if gated:
        outputs //= 2
    rows, block, warps = _shape(outputs, words, weight.itemsize)
    out = x.new_empty(*x.shape[:-1], outputs)
    _vector_kernel[(triton.cdiv(outputs, rows),)](
        x.view(torch.int64 if weight.itemsize == 1 else torch.int32),
        weight.view(torch.int32),
        out if scale is None else scale,
        out if bias is None else bias,
        out,
        outputs,
        words,
        WEIGHTS=_KINDS[weight.dtype],
        SCALED=scale is not None,
        BIAS=bias is not None,
        GATED=gated,
        EVEN=words % block == 0,
        ROWS=rows,
        BLOCK=block,
        NATIVE=x.is_cuda,
        num_warps=warps,
        **dependent_launch.options(x.device),
    )
    return out


def is_vector(x: torch.Tensor) -> bool:
    """True if `x` [..., size] is one contiguous row, which words of 64 bits can be read from."""
    return bool(x.numel() == x.shape[-1] and x.is_contiguous() and not x.numel() % 4 and not x.data_ptr() % 8)


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, scale: torch.Tensor | None = None
) -> torch.Tensor:
    """`torch.nn.functional.linear` of one row.

    Args:
        x: [..., size], for which `is_vector` is true.
        weight: [outputs, size], contiguous.
        bias: [outputs].
        scale: float32 with a number for each output, which its row of `weight` is multiplied by.

    Returns:
        [..., outputs].
    """
    return _product(x, weight, bias, scale, gated=False)


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
