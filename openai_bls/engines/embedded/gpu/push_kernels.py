"""Triton kernel for sums over the ranks of a few rows, with the residual add and the RMS norm that follow.

Every rank writes its rows into the memory of all others and then waits for theirs in its own, so that a sum takes the
time of one transfer. A word of 32 bits holds a number of 16 bits and the number of the turn: what has come is right as
it is, and needs no barrier and no fence. Words of odd and even turns have places of their own. A rank that begins turn
n has seen turn n - 1 of all others, which therefore have read turn n - 2, whose place turn n takes.
"""

# ruff: noqa: ANN001, ANN201, ANN202, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-not-found"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

_LOOKS = tl.constexpr(4096)
"""Looks at a rank's words that have not come before each look at the host's memory, which is far."""


class Exchange(NamedTuple):
    """What a rank needs to write to the others, and to read what they wrote."""

    rank: int
    addresses: tuple[int, ...]
    """Of each rank's memory as seen from here: int32 [2, ranks, most rows, numbers in a row], which begins as zeros."""
    stop: torch.Tensor
    """int32 [1] of the host, where the GPU can read it. Ends all waiting when it is not zero any more."""
    turns: torch.Tensor
    """int32 [most rows]: turns of each row so far."""

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.addresses)


@triton.jit
def push(value, turn, addresses, place, at, mask, RANK: tl.constexpr, RANKS: tl.constexpr):
    """Write numbers to all other ranks; `place` is the size of a turn of one rank, and `at` is within it."""
    word = (value.to(tl.int16, bitcast=True).to(tl.int32) << 16) | (turn & 0xFFFF)
    for rank in tl.static_range(RANKS):
        if rank != RANK:
            theirs = tl.multiple_of(addresses[rank].to(tl.pointer_type(tl.int32)), 16)
            tl.store(theirs + ((turn & 1) * RANKS + RANK) * place + at, word, mask=mask)


@triton.jit
def _rounded(x, kind: tl.constexpr):
    return x.to(kind).to(tl.float32)


@triton.jit
def _sum_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    sum_ptr,
    out_ptr,
    addresses,
    stop_ptr,
    turns_ptr,
    place,
    epsilon,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    PUSHED: tl.constexpr,
    NORM: tl.constexpr,
):
    """One row."""
    kind: tl.constexpr = x_ptr.dtype.element_ty
    columns = tl.arange(0, BLOCK)
    mask = columns < SIZE
    row = tl.program_id(0)
    at = row * SIZE + columns
    if NORM:
        weight = tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    turn = tl.load(turns_ptr + row) + 1
    own = tl.load(x_ptr + at, mask=mask, other=0.0)
    if not PUSHED:
        push(own, turn, addresses, place, at, mask, RANK, RANKS)
    if NORM:
        residual = tl.load(residual_ptr + at, mask=mask, other=0.0).to(tl.float32)
    mine = tl.multiple_of(addresses[RANK].to(tl.pointer_type(tl.int32)), 16)
    total = tl.zeros([BLOCK], tl.float32)
    stop = 0
    for rank in tl.static_range(RANKS):
        if rank == RANK:
            total += own.to(tl.float32)
        else:
            come = mine + ((turn & 1) * RANKS + rank) * place + at
            word = tl.load(come, mask=mask, other=0, volatile=True)
            looks = 0
            while (tl.max((mask & ((word ^ turn) & 0xFFFF != 0)).to(tl.int32), 0) != 0) & (stop == 0):
                word = tl.load(come, mask=mask, other=0, volatile=True)
                looks += 1
                if looks % _LOOKS == 0:
                    # The largest of what all threads see, so that all of them go on or none.
                    stop = tl.max(tl.load(stop_ptr + columns * 0, volatile=True), 0)
            total += (word >> 16).to(tl.int16).to(kind, bitcast=True).to(tl.float32)
    if NORM:
        total = _rounded(_rounded(total, kind) + residual, kind)
    tl.store(sum_ptr + at, total.to(kind), mask=mask)
    if NORM:
        scaled = total * tl.rsqrt(tl.sum(total * total, 0) / SIZE + epsilon)
        tl.store(out_ptr + at, (_rounded(scaled, kind) * weight).to(kind), mask=mask)
    tl.store(turns_ptr + row, turn)


def sum_rows(
    x: torch.Tensor,
    exchange: Exchange,
    norm: tuple[torch.Tensor, torch.Tensor, float] | None = None,
    *,
    pushed: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum over the ranks, which all call it with the same shapes.

    Args:
        x: [..., size] of 16 bits, contiguous; size is the same in all calls.
        exchange: the rank's.
        norm: residual, contiguous and of the shape of `x`; weight; epsilon.
        pushed: whoever computed `x` has pushed it.

    Returns:
        The sum, plus the residual where there is one, and its RMS norm, rounded as transformers does; without `norm`
        the sum twice.
    """
    size = x.shape[-1]
    total = torch.empty_like(x)
    residual, weight, epsilon = norm or (x, x, 0.0)
    out = total if norm is None else torch.empty_like(x)
    _sum_kernel[(x.numel() // size,)](
        x,
        residual,
        weight,
        total,
        out,
        exchange.addresses,
        exchange.stop,
        exchange.turns,
        exchange.turns.numel() * size,
        epsilon,
        RANK=exchange.rank,
        RANKS=exchange.size,
        SIZE=size,
        BLOCK=triton.next_power_of_2(size),
        PUSHED=pushed,
        NORM=norm is not None,
        num_warps=8,
    )
    return total, out
