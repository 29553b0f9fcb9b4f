"""Programmatic dependent launch: a kernel that starts while the one before it still runs.

A GPU of compute capability 9.0 or later starts such a kernel once every program of the one before has called
`start_next` or ended. Until `wait` returns, which it does when the kernel before is complete and its results are
visible, it may write nothing, and read only what no kernel of a step writes: weights. Every kernel launched so waits in
every program before it ends, so that one which is complete has all before it complete too, however many have started.
What follows, a library's kernel or a copy, is therefore launched as ever, and memory that is given out again is not in
use. Weights are written by libraries' kernels long before, and not by the kernel before the first that reads them.
"""

# ruff: noqa: ANN201
# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-not-found"

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_LEAST_CAPABILITY = (9, 0)


@triton.jit
def start_next():
    """Allow the next kernel to start; its programs take the room that this one's leave."""
    gdc_launch_dependents()


@triton.jit
def wait():
    """Return when the kernel before is complete."""
    gdc_wait()


@functools.cache
def options(device: torch.device, *, early: bool = True) -> dict[str, Any]:
    """Arguments of a launch: the kernel's `DEPENDENT`, and what tells the GPU.

    Args:
        device: device that runs the kernel.
        early: the kernel may start early; else only the next one. Not for a few programs that each do much: they are
            packed onto the multiprocessors that the kernel before leaves first.
    """
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < _LEAST_CAPABILITY:
        return {"DEPENDENT": False}
    return {"DEPENDENT": True, "launch_pdl": True} if early else {"DEPENDENT": True}
