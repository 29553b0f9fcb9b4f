"""Logits of the few rows of a decoding step, put together on rank 0, which alone samples."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

ROWS = 256
"""Most rows of a step."""

_all_gather: Callable[[torch.Tensor, torch.Tensor], object] = getattr(
    dist, "all_gather_single", dist.all_gather_into_tensor
)
"""Its name before PyTorch 2.13 is the second one."""


def gathered(x: torch.Tensor, size: int) -> torch.Tensor:
    """The last dimension of all `size` ranks, put together on each of them by NCCL or gloo."""
    parts = x.new_empty(size * x.numel())
    _all_gather(parts, x.flatten())
    return parts.view(size, *x.shape).movedim(0, -2).reshape(*x.shape[:-1], -1)


class LogitsGather:
    """Memory of rank 0 that the other ranks write their logits to."""

    def __init__(self, rank: int, size: int, width: int, stop: torch.Tensor, device: torch.device) -> None:
        """Share memory with all other ranks, which do the same; raises whatever drivers and PyTorch raise.

        Nobody may begin until all have done it.

        Args:
            rank: this one.
            size: number of ranks.
            width: logits of one rank, in 16 bits each.
            stop: int32 [1] of the host, where the GPU can read it; ends all waiting when it is not zero any more.
            device: a GPU.
        """
        from torch.distributed import _symmetric_memory as symmetric_memory

        from openai_bls.engines.embedded.gpu import gather_kernels

        self._kernels = gather_kernels
        self._width = width
        self._leads = rank == 0
        self._stop = stop
        flags, parts = ROWS * gather_kernels.tiles(width) * 4, ROWS * width * 2
        self._memory = symmetric_memory.empty((size - 1) * (flags + parts), dtype=torch.uint8, device=device).zero_()
        handle = symmetric_memory.rendezvous(self._memory, dist.group.WORLD.group_name)
        others = self._memory[: (size - 1) * flags].view(torch.int32).view(size - 1, -1)
        self._flags, self._parts = others, self._memory[(size - 1) * flags :]
        self._turns = torch.zeros_like(others if self._leads else others[0])
        first = handle.buffer_ptrs[0]
        self._addresses = first + (rank - 1) * flags, first + (size - 1) * flags + (rank - 1) * parts
        torch.cuda.synchronize(device)

    def takes(self, x: torch.Tensor) -> bool:
        """True if `x` can be put together here."""
        return bool(x.shape[-1] == self._width and x.itemsize == 2 and x.numel() <= ROWS * self._width)

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """The last dimension of all ranks, on rank 0; `x` on the others."""
        rows = x.reshape(-1, self._width)
        if not self._leads:
            self._kernels.send(rows, self._turns, *self._addresses)
            return x
        parts = self._parts.view(x.dtype).view(len(self._flags), ROWS, self._width)
        whole = self._kernels.receive(rows, self._turns, self._flags, parts, self._stop)
        return whole.view(*x.shape[:-1], -1)
