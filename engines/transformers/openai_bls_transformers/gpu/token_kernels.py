"""Triton kernels for the tokens of a step: those of the step before, and the likeliest of each row of logits."""

# ruff: noqa: ANN001, ANN202, N803, PLR0124
# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-not-found"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from openai_bls.engines.not_finite import NOT_FINITE


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
