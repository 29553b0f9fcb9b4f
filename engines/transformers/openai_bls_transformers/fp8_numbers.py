"""Numbers in FP8 (e4m3): rounded to it, quantized with a scale for each row, and the devices that compute with it."""

from __future__ import annotations

import torch

FP8 = torch.float8_e4m3fn
LARGEST = float(torch.finfo(FP8).max)
LEAST_AMAX = 1e-12
"""Largest number of a row below which the row is taken for zeros."""
_LEAST_CAPABILITY = (8, 9)
"""Compute capability with tensor cores for FP8."""


def refusal(device: torch.device, dtype: torch.dtype) -> str | None:
    """Reason why a device multiplies no FP8 weights with activations of `dtype`; None if it does."""
    if device.type != "cuda":
        return None
    capability = torch.cuda.get_device_capability(device)
    if capability < _LEAST_CAPABILITY:
        least, found = (".".join(map(str, numbers)) for numbers in (_LEAST_CAPABILITY, capability))
        return f"a GPU computes it from {least} on, and the {torch.cuda.get_device_name(device)} has {found}"
    if dtype != torch.bfloat16:
        return f"a GPU computes it in bfloat16 alone, not in {str(dtype).removeprefix('torch.')} (--dtype bfloat16)"
    return None


def saturated(x: torch.Tensor) -> torch.Tensor:
    """`x` in FP8; numbers beyond its range become its largest."""
    return x.clamp(-LARGEST, LARGEST).to(FP8)


def round_rows(x: torch.Tensor) -> torch.Tensor:
    """Numbers of `x` as FP8 keeps them with a scale for each row, in the type of `x`."""
    rows = x.float()
    scale = rows.abs().amax(-1, keepdim=True).clamp(min=LEAST_AMAX) / LARGEST
    return ((rows / scale).to(FP8).float() * scale).to(x.dtype)


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Numbers of `x` as FP8 keeps them without a scale, in the type of `x`."""
    return saturated(x).to(x.dtype)


def quantize_weight(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight in FP8, and the scale of each output.

    Args:
        weight: [outputs, inputs].

    Returns:
        [outputs, inputs] in FP8 and float32 [outputs, 1].
    """
    rows = weight.float()
    scale = rows.abs().amax(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / LARGEST
    return saturated(rows / scale), scale
