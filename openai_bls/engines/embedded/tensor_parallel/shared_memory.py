"""Kernels over memory that the GPUs share, where these work and are faster than NCCL."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from openai_bls.core.manifest import first_line
from openai_bls.engines.embedded.tensor_parallel.logits_gather import LogitsGather, gathered
from openai_bls.engines.embedded.tensor_parallel.short_sums import ShortSums

logger = logging.getLogger(__name__)

_ROUNDS = 50
_TRIAL_ROWS = (1, 3, 1)
_has_met = False
"""This process has shared memory. PyTorch counts how often it did, and ranks that differ in that would wait forever."""


def kernels(
    rank: int, size: int, width: int, logits: int, device: torch.device
) -> tuple[ShortSums | None, LogitsGather | None]:
    """Kernels for this machine. All ranks call it at the same time and decide the same; arguments as of `join`."""
    global _has_met
    is_first, _has_met = not _has_met, True
    if not _least(float(is_first), device):
        logger.info("short sums are NCCL's: one of the ranks has shared memory with others before")
        return None, None
    sums = gather = None
    try:
        sums = ShortSums(rank, size, width, device)
        gather = LogitsGather(rank, size, logits, sums.stopped, device) if logits else None
    except Exception as error:  # of drivers, and of machines whose GPUs cannot write to each other
        logger.warning("short sums are NCCL's: %s: %s", type(error).__name__, first_line(error))
        sums = None
    if not _least(float(sums is not None), device) or sums is None:
        return None, None
    if not _is_faster("short sums", lambda: _try_sums(sums, rank, size, device), device):
        return None, None
    if gather is None or not _is_faster(
        "logits", lambda: _try_gather(gather, sums, rank, size, logits, device), device
    ):
        return sums, None
    return sums, gather


def _is_faster(what: str, trial: Callable[[], float], device: torch.device) -> bool:
    """True if `trial`, which tells how many times as fast as NCCL something is, says so on all ranks."""
    times = 0.0
    try:
        times = trial()
    except Exception as error:  # of compilers and drivers
        logger.warning("%s are NCCL's: %s: %s", what, type(error).__name__, first_line(error))
    times = _least(times, device)
    logger.info("%s: kernels of our own are %.2f times as fast as NCCL", what, times)
    return times > 1


def _try_sums(sums: ShortSums, rank: int, size: int, device: torch.device) -> float:
    """How many times as fast as NCCL a row of a decoding step is summed; 0 if a sum is wrong."""
    is_right = True
    for rows in _TRIAL_ROWS:
        parts = _parts(size, rows, sums.width, device)
        is_right &= torch.allclose(sums.sum(parts[rank]), parts.float().sum(0).to(parts.dtype), rtol=0.01)
    row = torch.zeros_like(parts[rank])
    ours = _seconds(lambda: sums.sum(row), device)
    return is_right * _seconds(lambda: dist.all_reduce(row), device) / ours


def _try_gather(
    gather: LogitsGather, sums: ShortSums, rank: int, size: int, logits: int, device: torch.device
) -> float:
    """How many times as fast as NCCL the logits of a few rows are put together; 0 if they are wrong.

    Each time after a sum, for the ranks must hear of each other in between.
    """
    row = torch.zeros(1, sums.width, dtype=torch.bfloat16, device=device)
    is_right = True
    for rows in (*_TRIAL_ROWS, 16):
        parts = _parts(size, rows, logits, device)
        sums.sum(row)
        found = gather.gather(parts[rank])
        is_right &= rank != 0 or torch.equal(found, torch.cat([*parts], -1))
    ours = _seconds(lambda: (sums.sum(row), gather.gather(parts[rank])), device)
    return is_right * _seconds(lambda: (sums.sum(row), gathered(parts[rank], size)), device) / ours


def _parts(size: int, rows: int, width: int, device: torch.device) -> torch.Tensor:
    """What all ranks have, the same numbers on each of them."""
    random = torch.Generator(device).manual_seed(rows)
    return torch.randn(size, rows, width, generator=random, device=device, dtype=torch.bfloat16)


def _least(value: float, device: torch.device) -> float:
    """The least of all ranks' values."""
    found = torch.tensor([value], device=device)
    dist.all_reduce(found, dist.ReduceOp.MIN)
    return float(found.item())


def _seconds(operation: Callable[[], object], device: torch.device) -> float:
    """Of one operation in a row of them, as in a CUDA graph."""
    torch.cuda.synchronize(device)
    stream = torch.cuda.Stream(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        operation()
        stream.synchronize()
        graph.capture_begin(capture_error_mode="thread_local")
        for _ in range(_ROUNDS):
            operation()
        graph.capture_end()
        graph.replay()
        stream.synchronize()
        started = time.perf_counter()
        graph.replay()
        stream.synchronize()
    return (time.perf_counter() - started) / _ROUNDS
