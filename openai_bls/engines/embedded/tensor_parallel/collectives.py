"""Collective operations of the ranks: NCCL between GPUs, gloo between processes on a CPU.

Sums of the few rows of a decoding step are so short that NCCL's protocol costs more than the transfer. For those one
kernel reads the other GPUs' memory (PyTorch's symmetric memory), where that works here and comes out right.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from openai_bls.core.manifest import first_line

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 120.0
"""Longest that a rank waits for another in one operation of gloo, and for the group to come about."""
_SHORT_BYTES = 1 << 20
"""Bytes that a GPU reads of all others in a sum up to which the one kernel is faster than NCCL."""
_ALIGNMENT = 16
"""Bytes that the one kernel reads at a time."""
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

_gather: Callable[[torch.Tensor, torch.Tensor], object] = getattr(
    dist, "all_gather_single", dist.all_gather_into_tensor
)
"""Its name before PyTorch 2.13 is the second one."""


class Collectives:
    """Operations of one rank with all others, which call the same ones in the same order."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._short: torch.Tensor | None = None
        """Memory that the other GPUs read, if there is any."""
        self._silent = False

    def join(self, store: Path, rank: int, device: torch.device) -> None:
        """Meet the other ranks, by the file `store`."""
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
            self._share_memory(rank, device)

    def leave(self) -> None:
        """Part from the other ranks; they may be gone."""
        self._short = None
        leaving = threading.Thread(target=self._leave, daemon=True)
        leaving.start()
        leaving.join(_LEAVE_SECONDS)

    def abort(self) -> None:
        """End operations that wait for a rank which is gone."""
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
        if self._short is not None and x.nbytes <= self._short.nbytes and not x.nbytes % _ALIGNMENT:
            return self._sum_short(x)
        dist.all_reduce(x)
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """The last dimension of all ranks, put together."""
        parts = x.new_empty(self.size * x.numel())
        _gather(parts, x.flatten())
        return parts.view(self.size, *x.shape).movedim(0, -2).reshape(*x.shape[:-1], -1)

    def broadcast(self, x: torch.Tensor) -> None:
        """Rank 0's `x`, on every rank."""
        dist.broadcast(x, 0)

    def _sum_short(self, x: torch.Tensor) -> torch.Tensor:
        assert self._short is not None
        memory = self._short.view(x.dtype)[: x.numel()].view(x.shape)
        name = dist.group.WORLD.group_name
        out: torch.Tensor = torch.ops.symm_mem.one_shot_all_reduce_copy(memory, x.contiguous(), "sum", name)
        return out

    def _share_memory(self, rank: int, device: torch.device) -> None:
        """Have short sums by one kernel, if that is right and faster; all ranks decide the same."""
        memory = None
        try:
            from torch.distributed import _symmetric_memory as symmetric_memory

            memory = symmetric_memory.empty(_SHORT_BYTES // (self.size - 1), dtype=torch.uint8, device=device)
            symmetric_memory.rendezvous(memory, dist.group.WORLD.group_name)
        except Exception as error:  # of drivers, and of machines whose GPUs cannot read each other
            logger.warning("short sums are NCCL's: %s: %s", type(error).__name__, first_line(error))
            memory = None
        if not _least(float(memory is not None), device):
            return
        self._short = memory
        faster = _least(self._try_short(rank, device), device)
        logger.info("short sums: one kernel is %.2f times as fast as NCCL", faster)
        if faster <= 1:
            self._short = None

    def _try_short(self, rank: int, device: torch.device) -> float:
        """How many times as fast as NCCL the one kernel sums a row of a decoding step; 0 if it is wrong."""
        row = torch.full((1, 4096), float(rank + 1), device=device, dtype=torch.bfloat16)
        is_right = bool((self.all_reduce(row) == sum(range(1, self.size + 1))).all())
        short = _seconds(lambda: self.all_reduce(row), device)
        return is_right * _seconds(lambda: dist.all_reduce(row), device) / short


def _least(value: float, device: torch.device) -> float:
    """The least of all ranks' values."""
    found = torch.tensor([value], device=device)
    dist.all_reduce(found, dist.ReduceOp.MIN)
    return float(found.item())


def _seconds(operation: Callable[[], object], device: torch.device) -> float:
    """Of one operation in a row of them, as in a CUDA graph."""
    rounds, stream = 50, torch.cuda.Stream(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        operation()
        stream.synchronize()
        graph.capture_begin(capture_error_mode="thread_local")
        for _ in range(rounds):
            operation()
        graph.capture_end()
        graph.replay()
        stream.synchronize()
        started = time.perf_counter()
        graph.replay()
        stream.synchronize()
    return (time.perf_counter() - started) / rounds
