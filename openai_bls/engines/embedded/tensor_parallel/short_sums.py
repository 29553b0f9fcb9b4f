"""Sums over the ranks of the few rows of a decoding step, by one kernel over memory that the GPUs share.

Such sums are so short that NCCL's protocol costs more than the transfer.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

ROWS = 256
"""Most rows of a sum."""
_TURNS = 2
_WORD_BYTES = 4
"""Of a word, which holds a number."""


class ShortSums:
    """Memory of one rank that the others write to, and the sums that are computed over it."""

    def __init__(self, rank: int, size: int, width: int, device: torch.device) -> None:
        """Share memory with all other ranks, which do the same; raises whatever drivers and PyTorch raise.

        Nobody may begin a sum until all have done it.

        Args:
            rank: this one.
            size: number of ranks.
            width: numbers in a row.
            device: a GPU.
        """
        from torch.distributed import _symmetric_memory as symmetric_memory

        from openai_bls.engines.embedded.gpu import push_kernels, vector_kernels

        self._sum_rows, self._vectors = push_kernels.sum_rows, vector_kernels
        self.width = width
        """Numbers in a row."""
        self._memory = symmetric_memory.empty(
            _TURNS * size * ROWS * width * _WORD_BYTES, dtype=torch.uint8, device=device
        ).zero_()
        handle = symmetric_memory.rendezvous(self._memory, dist.group.WORLD.group_name)
        self.stopped = torch.zeros(1, dtype=torch.int32).pin_memory()
        """Not zero once all waiting has been ended; GPUs read it."""
        self._exchange = push_kernels.Exchange(
            rank,
            tuple(handle.buffer_ptrs),
            self.stopped,
            turns=torch.zeros(ROWS, dtype=torch.int32, device=device),
        )
        self._pushed: torch.Tensor | None = None
        torch.cuda.synchronize(device)

    def takes(self, x: torch.Tensor) -> bool:
        """True if `x` can be summed here."""
        return bool(x.shape[-1] == self.width and x.itemsize == 2 and x.numel() <= ROWS * self.width)

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Sum of all ranks' `x`, the same on all of them to the bit."""
        return self._sum_rows(x.contiguous(), self._exchange)[0]

    def part(self, linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Output of `linear`, which `add_norm` is to sum; that of one row is on its way when it is computed."""
        # It has the kernel for one row, and no adapters.
        plain = type(linear) is nn.Linear and "weight" in getattr(linear.forward, "keywords", ())
        if not plain or not self._vectors.is_vector(x) or x.itemsize != 2 or linear.out_features != self.width:
            return linear(x)
        self._pushed = self._vectors.linear(x, linear.weight, linear.bias, exchange=self._exchange)
        return self._pushed

    def add_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`residual` plus the sum of all ranks' `x`, and the RMS norm of that."""
        pushed, self._pushed = self._pushed is x, None
        norm = residual.contiguous(), weight, epsilon
        return self._sum_rows(x.contiguous(), self._exchange, norm, pushed=pushed)

    def stop(self) -> None:
        """End all waiting for other ranks, now and from now on; sums are wrong then."""
        self.stopped.fill_(1)
