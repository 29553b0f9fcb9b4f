"""Fused rotation of queries and keys: where steps attend over the paged cache, a kernel of theirs does it.

Whatever attends otherwise goes through the module's own code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import AttentionInterface

from openai_bls_transformers.gpu import paged_attention
from openai_bls_transformers.model.fusion_trials import close, leave, normal

PROJECTIONS = ("q_proj", "k_proj", "v_proj")
_TRIAL = "openai_bls_trial"
"""Implementation of attention during a trial."""

_Attend = Callable[..., tuple[torch.Tensor, None]]
"""Attention by `paged_attention.attend` or a stand-in."""


def fuse_attention(module: Any) -> int:
    """Let an attention module attend without a launch for the rotation, if that is all it does between projections."""
    if not all(hasattr(module, name) for name in (*PROJECTIONS, "o_proj", "head_dim", "layer_idx")):
        return 0
    constants = _constants(module)
    if constants is None:
        return leave(module)
    original = type(module).forward

    def forward(
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, Any]:
        if position_embeddings is None or "cu_seq_lens_k" not in kwargs or not paged_attention.in_use(module, "paged"):
            kwargs |= {"position_embeddings": position_embeddings, "attention_mask": attention_mask}
            found: tuple[torch.Tensor, Any] = original(module, hidden_states, **kwargs)
            return found
        angles = _whole(position_embeddings, module.head_dim)
        return _attend(module, paged_attention.attend, hidden_states, angles, **(constants | kwargs))

    module.forward = forward
    return 1


_Angles = tuple[torch.Tensor, torch.Tensor]
"""Cosine and sine."""
_latest: dict[str, tuple[torch.Tensor, _Angles]] = {}
"""Latest angles for half of a head, by device: their cosine, and the angles for a whole head."""


def _whole(angles: _Angles, size: int) -> _Angles:
    """Angles for heads of `size`, where a model may give those of the first half, which are the second's too.

    All layers of a step give the same ones.
    """
    cos, sin = angles
    if cos.shape[-1] == size:
        return angles
    known = _latest.get(str(cos.device))
    if known is None or known[0] is not cos:
        known = _latest[str(cos.device)] = cos, (torch.cat([cos, cos], -1), torch.cat([sin, sin], -1))
    return known[1]


def _attend(
    module: Any, attend: _Attend, hidden_states: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], **kwargs: Any
) -> tuple[torch.Tensor, None]:
    """Attention of all rows, or its outputs at `kept_rows` alone."""
    rows, kept = hidden_states.shape[:-1], kwargs.get("kept_rows")
    q, k, v = (getattr(module, name)(hidden_states).view(*rows, -1, module.head_dim) for name in PROJECTIONS)
    if hasattr(module, "q_norm"):
        q, k = module.q_norm(q), module.k_norm(k)
    out, _ = attend(module, q, k, v, angles, **kwargs)
    out = out.reshape(*rows, -1)
    return module.o_proj(out if kept is None else out.index_select(1, kept)), None


class _StandIn:
    """Attention in a trial: a sum that every query, key and value is a part of."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        """Other arguments of the latest call."""

    def __call__(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **kwargs: Any
    ) -> Any:
        self.asked = kwargs
        own = (key - 2 * value).repeat_interleave(query.shape[1] // key.shape[1], 1)
        return (query + own).transpose(1, 2), None

    def rotating(
        self, module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, angles: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, None]:
        """The same, in the place of `paged_attention.attend`."""
        from openai_bls_transformers.gpu import fused_kernels

        q, k = fused_kernels.rotary(q.transpose(1, 2), k.transpose(1, 2), *angles)
        out: torch.Tensor = self(module, q, k, v.transpose(1, 2))[0]
        return out, None


@torch.no_grad()  # type: ignore[untyped-decorator]
def _constants(module: Any) -> dict[str, Any] | None:
    """What `module` tells attention besides a step's arguments; None if it does something of its own."""
    stand_in, config = _StandIn(), module.config
    before = config._attn_implementation
    AttentionInterface.register(_TRIAL, stand_in)
    config._attn_implementation = _TRIAL
    try:
        for size in (module.head_dim, module.head_dim // 2):
            found = _tried(module, stand_in, size)
            if found is not None:
                return found
    finally:
        config._attn_implementation = before
    return None


def _tried(module: Any, stand_in: _StandIn, size: int) -> dict[str, Any] | None:
    """What `module` tells attention besides a step's arguments, if it takes angles of `size` and does nothing else."""
    step, constants = object(), None
    for rows in (1, 3):
        x = normal(1, rows, module.q_proj.weight.shape[-1], of=module.q_proj)
        cos, sin = (normal(1, rows, size, of=module.q_proj) for _ in range(2))
        try:
            wanted, _ = type(module).forward(module, x, position_embeddings=(cos, sin), attention_mask=None, step=step)
        except RuntimeError:  # of shapes
            return None
        constants = dict(stand_in.asked)
        found, _ = _attend(module, stand_in.rotating, x, _whole((cos, sin), module.head_dim))
        if constants.pop("step", None) is not step or not close([found], [wanted]):
            return None
    return constants
