"""Trials of fused layers on random numbers, against what they replace."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch

from openai_bls_transformers.model.fp8_layers import Fp8Linear

logger = logging.getLogger(__name__)

_CLOSE = 0.02  # relative to the largest value
SCALES = 1.0, 8.0
"""Sizes of a trial's numbers; by the larger, gates go beyond the limits that some classes have."""


def close(found: Iterable[torch.Tensor], wanted: Iterable[torch.Tensor]) -> bool:
    """True if tensors differ by no more than rounding makes them."""
    return all(
        bool((a.float() - b.float()).abs().max() <= _CLOSE * b.float().abs().max())
        for a, b in zip(found, wanted, strict=True)
    )


def normal(*shape: int, of: Any) -> torch.Tensor:
    """Random numbers in the type of what the layer `of` takes."""
    dtype = of.input_dtype if isinstance(of, Fp8Linear) else of.weight.dtype
    return torch.randn(*shape, dtype=dtype, device=of.weight.device)


def leave(module: Any) -> int:
    """Say that a replacement does something else; 0, the number of replaced modules."""
    logger.warning("%s is left as it is: a trial came out different", type(module).__name__)
    return 0


def install(module: Any, forward: Callable[..., Any], layer: Any) -> int:
    """Make `forward` the module's, if it agrees with the original on random rows such as `layer` takes."""
    with torch.no_grad():
        for rows, scale in itertools.product((1, 3), SCALES):
            trial = normal(1, rows, layer.weight.shape[-1], of=layer) * scale
            if not close([forward(trial)], [type(module).forward(module, trial)]):
                return leave(module)
    module.forward = forward
    return 1
