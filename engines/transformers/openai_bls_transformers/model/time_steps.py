"""Time steps of state-space layers (Mamba 2), held within the same limits in every pass.

Some classes of transformers (Nemotron-H and Zamba 2 in 5.23) raise time steps to the configuration's `time_step_min` in
a prompt, and not in the passes of one token after it. So what the model says of a text depends on how the text came in,
and the self-test refuses the model. Here the limit holds in both, as in a pass over the whole text.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import torch

_UPDATE = "mamba2_selective_state_update"
"""Function of such a model's file for a pass of one token."""


def hold(model: Any) -> bool:
    """Let a pass of one token hold the limits of `model` that its other passes hold; True if there are any.

    The function of the model's file is replaced, for all models of this process that are of the same file.
    """
    limits = {
        (sys.modules[type(module).__module__], tuple(module.time_step_limit))
        for module in model.modules()
        if hasattr(module, "time_step_limit") and hasattr(sys.modules[type(module).__module__], _UPDATE)
    }
    limits = {(file, limit) for file, limit in limits if limit[0] > 0 or limit[1] < math.inf}
    if len(limits) != 1:
        return False
    ((file, limit),) = limits
    update = getattr(file, _UPDATE)
    if isinstance(update, functools.partial):  # of a model before
        update = update.args[0]
    setattr(file, _UPDATE, functools.partial(_limited, update, limit))
    return True


def _limited(
    update: Callable[..., torch.Tensor],
    limit: tuple[float, float],
    state: torch.Tensor,
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    *matrices: torch.Tensor,
    dt_bias: torch.Tensor | None = None,
    dt_softplus: bool = False,
    **more: Any,
) -> torch.Tensor:
    """`update` with time steps within `limit`; arguments as its own."""
    if dt_bias is not None:
        dt = dt + dt_bias.to(dt.dtype)
    if dt_softplus:
        dt = torch.nn.functional.softplus(dt)
    return update(state, hidden_states, dt.clamp(*limit), *matrices, dt_bias=None, dt_softplus=False, **more)
