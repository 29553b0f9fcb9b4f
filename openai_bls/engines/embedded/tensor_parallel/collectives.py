"""Collective operations of the ranks: NCCL between GPUs, gloo between processes on a CPU.

The few rows of a decoding step are summed, and their logits put together, by kernels of our own (`ShortSums`,
`LogitsGather`), where these work, come out right and are faster.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from openai_bls.engines.embedded.tensor_parallel import shared_memory
from openai_bls.engines.embedded.tensor_parallel.logits_gather import LogitsGather, gathered
from openai_bls.engines.embedded.tensor_parallel.short_sums import ShortSums

TIMEOUT_SECONDS = 120.0
"""Longest that a rank waits for another in one operation of gloo, and for the group to come about."""
_LEAVE_SECONDS = 5.0
"""Longest that parting from the other ranks may take: NCCL's way to end has hung where a rank was gone."""
_ENVIRONMENT = {
    # All ranks are on this machine, whose other interfaces may have no address that answers.
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    # Else graphs and plain calls may mix, and every replay costs some microseconds more.
    "NCCL_GRAPH_MIXING_SUPPORT": "0",
    # Else PyTorch ends the process when a rank is lost, before requests have their errors.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
}


class Collectives:
    """Operations of one rank with all others, which call the same ones in the same order."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._short: ShortSums | None = None
        self._logits: LogitsGather | None = None
        self._silent = False

    def join(self, store: Path, rank: int, device: torch.device, width: int, logits: int) -> None:
        """Meet the other ranks.

        Args:
            store: file by which they find each other.
            rank: this one.
            device: of this rank.
            width: hidden size of the model.
            logits: those of one rank, 0 if each rank computes them all.
        """
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        on_gpu = device.type == "cuda"
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=dist.FileStore(str(store), self.size),
            rank=rank,
            world_size=self.size,
            timeout=datetime.timedelta(seconds=TIMEOUT_SECONDS),
            device_id=device if on_gpu else None,
        )
        if on_gpu:
            self._short, self._logits = shared_memory.kernels(rank, self.size, width, logits, device)

    def leave(self) -> None:
        """Part from the other ranks; they may be gone."""
        if self._short is not None:
            self._short.stop()
        self._short = self._logits = None
        leaving = threading.Thread(target=self._leave, daemon=True)
        leaving.start()
        leaving.join(_LEAVE_SECONDS)

    def abort(self) -> None:
        """End operations that wait for a rank which is gone."""
        if self._short is not None:
            self._short.stop()
        if dist.is_initialized() and dist.get_backend() == "nccl":
            dist.distributed_c10d._abort_process_group()

    def _leave(self) -> None:
        self.abort()
        if dist.is_initialized():
            dist.destroy_process_group()

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        """Sums are this rank's own part: while modules are tried out, on each rank for itself."""
        self._silent = True
        try:
            yield
        finally:
            self._silent = False

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum over all ranks; `x` may be changed."""
        if self._silent:
            return x
        if self._short is not None and self._short.takes(x):
            return self._short.sum(x)
        dist.all_reduce(x)
        return x

    def part(self, linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Output of `linear`, which `add_norm` is to sum."""
        if self._silent or self._short is None:
            return linear(x)
        return self._short.part(linear, x)

    def add_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`residual` plus the sum of `x` over all ranks, and the RMS norm of that."""
        if not self._silent and self._short is not None and self._short.takes(x):
            return self._short.add_norm(x, residual, weight, epsilon)
        from openai_bls.engines.embedded.gpu.fused_kernels import add_rms_norm

        return add_rms_norm(self.all_reduce(x), residual, weight, epsilon)

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """The last dimension of all ranks, put together on rank 0. The others may get it, too, or `x`.

        Between two such calls there is a broadcast, or a sum.
        """
        if self._logits is not None and self._logits.takes(x):
            return self._logits.gather(x)
        return gathered(x, self.size)

    def broadcast(self, x: torch.Tensor) -> None:
        """Rank 0's `x`, on every rank."""
        dist.broadcast(x, 0)

    def finish(self) -> None:
        """Wait for this rank's operations. Those of one stream must not meet those of another."""
        if dist.is_initialized() and dist.get_backend() == "nccl":
            torch.cuda.synchronize()
