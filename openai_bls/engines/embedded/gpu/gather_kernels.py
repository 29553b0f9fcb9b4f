"""Triton kernels that put parts of rows together on rank 0, for the logits of a decoding step.

The other ranks write their parts into rank 0's memory, a tile of some columns at a time, and behind each tile the
number of the turn, which rank 0 waits for. Between two turns the ranks must have heard from rank 0, else a tile may be
overwritten before it is read.
"""

# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-not-found"

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 4096
"""Columns of a tile."""
_LOOKS = tl.constexpr(4096)
"""Looks for a tile that has not come before each look at the host's memory, which is far."""


def tiles(width: int) -> int:
    """Tiles of a row of `width` columns."""
    return int(triton.cdiv(width, _BLOCK))


@triton.jit
def _send_kernel(x_ptr, flags, parts, turns_ptr, width, BLOCK: tl.constexpr):
    """One tile, to the addresses of this rank's flags and parts in rank 0's memory."""
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    turn = tl.load(turns_ptr + tile) + 1
    x = tl.load(x_ptr + row * width + columns, mask=mask, other=0.0)
    theirs = tl.multiple_of(parts.to(tl.pointer_type(x_ptr.dtype.element_ty)), 16)
    tl.store(theirs + row * width + columns, x, mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(flags.to(tl.pointer_type(tl.int32)) + tile, turn, sem="release", scope="sys")
    tl.store(turns_ptr + tile, turn)


@triton.jit
def _receive_kernel(
    own_ptr, flags_ptr, parts_ptr, stop_ptr, turns_ptr, out_ptr, rows, width, RANKS: tl.constexpr, BLOCK: tl.constexpr
):
    """One tile of one rank."""
    row, rank = tl.program_id(0).to(tl.int64), tl.program_id(2)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    if rank == 0:
        x = tl.load(own_ptr + row * width + columns, mask=mask, other=0.0)
    else:
        place = (rank - 1) * rows
        tile = (place + tl.program_id(0)) * tl.num_programs(1) + tl.program_id(1)
        turn = tl.load(turns_ptr + tile) + 1
        looks = 0
        stop = 0
        while (tl.atomic_add(flags_ptr + tile, 0, sem="acquire", scope="sys") != turn) & (stop == 0):
            looks += 1
            if looks % _LOOKS == 0:
                stop = tl.max(tl.load(stop_ptr + columns * 0, volatile=True), 0)
        tl.debug_barrier()
        at = (place + row).to(tl.int64) * width
        x = tl.load(parts_ptr + at + columns, mask=mask, other=0.0, cache_modifier=".cg")
        tl.store(turns_ptr + tile, turn)
    tl.store(out_ptr + (row * RANKS + rank) * width + columns, x, mask=mask)


def send(x: torch.Tensor, turns: torch.Tensor, flags: int, parts: int) -> None:
    """Write this rank's part of each row to rank 0.

    Args:
        x: [rows, width], contiguous; width is the same in all turns.
        turns: int32 [most rows * tiles], zero at first.
        flags: address in rank 0's memory of int32 [most rows * tiles], zero at first.
        parts: address in rank 0's memory of [most rows, width].
    """
    rows, width = x.shape
    _send_kernel[(rows, tiles(width))](x, flags, parts, turns, width, BLOCK=_BLOCK, num_warps=8)


def receive(
    own: torch.Tensor, turns: torch.Tensor, flags: torch.Tensor, parts: torch.Tensor, stop: torch.Tensor
) -> torch.Tensor:
    """Rank 0's and all others' parts of each row.

    Args:
        own: [rows, width], contiguous.
        turns: int32 [other ranks, most rows * tiles], zero at first.
        flags: of the same shape, to which `send` writes.
        parts: [other ranks, most rows, width], to which `send` writes.
        stop: int32 [1] of the host, where the GPU can read it. Ends all waiting when it is not zero any more.

    Returns:
        [rows, ranks * width].
    """
    rows, width = own.shape
    ranks = len(parts) + 1
    out = own.new_empty(rows, ranks * width)
    _receive_kernel[(rows, tiles(width), ranks)](
        own, flags, parts, stop, turns, out, parts.shape[1], width, RANKS=ranks, BLOCK=_BLOCK, num_warps=8
    )
    return out
