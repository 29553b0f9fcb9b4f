"""Fused mixtures of experts: the router's choice in one launch, and the experts in two to four."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from openai_bls.embedded.model.fusion_trials import close, leave, normal

_TRIAL_TOKENS = 40
_MULTIPLE = 16
"""Number that the sizes of experts must be multiples of, for aligned loads."""


def fuse_experts(module: Any) -> int:
    """Let stacked experts run by Triton kernels; returns 1 if they do.

    These are transformers' experts with the weights `gate_up_proj` [experts, 2 * inner, size] and `down_proj`
    [experts, size, inner], without biases, and with SiLU.
    """
    if not _are_stacked(module):
        return 0
    from openai_bls.embedded.gpu import expert_kernels

    gate_up, down, original = module.gate_up_proj.data, module.down_proj.data, type(module).forward

    def forward(hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
        if expert_kernels.takes(hidden_states, top_k_index, top_k_weights):
            return expert_kernels.mix(hidden_states, gate_up, down, top_k_index, top_k_weights)
        found: torch.Tensor = original(module, hidden_states, top_k_index, top_k_weights)
        return found

    if not _experts_alike(module, forward):
        return leave(module)
    module.forward = forward
    return 1


def has_plain(model: Any) -> bool:
    """True if `model` has experts that transformers' own code runs."""
    return any(type(one).__name__.endswith("Experts") and "forward" not in vars(one) for one in model.modules())


def _are_stacked(module: Any) -> bool:
    gate_up, down = (getattr(module, name, None) for name in ("gate_up_proj", "down_proj"))
    if not isinstance(gate_up, nn.Parameter) or not isinstance(down, nn.Parameter) or down.dim() != 3:
        return False
    count, size, inner = down.shape
    has_more = any(getattr(module, name, False) for name in ("has_bias", "has_post_expert_norm", "_is_expert_parallel"))
    return bool(
        gate_up.shape == (count, 2 * inner, size)
        and gate_up.dtype == down.dtype
        and gate_up.is_contiguous()
        and down.is_contiguous()
        and not has_more
        and not getattr(module, "is_transposed", False)
        and not size % _MULTIPLE
        and not inner % _MULTIPLE
        and "silu" in type(getattr(module, "act_fn", None)).__name__.lower()
    )


@torch.no_grad()  # type: ignore[untyped-decorator]
def _experts_alike(module: Any, forward: Any) -> bool:
    """True if `forward` gives for random tokens and choices what the class of `module` does, by every program."""
    from openai_bls.embedded.gpu import expert_kernels

    count, size, _ = module.down_proj.shape
    top = min(count, getattr(getattr(module, "config", None), "num_experts_per_tok", None) or 2)
    for tokens in expert_kernels.sizes(top, count):
        x = torch.randn(tokens, size, dtype=module.down_proj.dtype, device=module.down_proj.device)
        scores, chosen = torch.randn(tokens, count, device=x.device).softmax(-1).topk(top)
        arguments = x, chosen, scores.to(x.dtype)
        if not close([forward(*arguments)], [type(module).forward(module, *arguments)]):
            return False
    return True


def fuse_router(module: Any) -> int:
    """Let a router choose in one launch where its scores are the softmax of its logits; returns 1 if it does."""
    weight, top = getattr(module, "weight", None), getattr(module, "top_k", None)
    if not type(module).__name__.lower().endswith("topkrouter") or not isinstance(top, int):
        return 0
    if not isinstance(weight, nn.Parameter) or weight.dim() != 2 or _has_bias(module):
        return 0
    from openai_bls.embedded.gpu import expert_kernels, few_rows_kernels

    with torch.no_grad():
        trial = normal(_TRIAL_TOKENS, weight.shape[1], of=module)
        logits, wanted, chosen = type(module).forward(module, trial)
        if not close([logits], [nn.functional.linear(trial, weight)]):
            return leave(module)
        highest = logits.gather(1, chosen)
        for normalized in (True, False):
            scores, found = expert_kernels.choose(logits, top, normalized=normalized, dtype=wanted.dtype)
            # Of equal logits either may be chosen.
            if close([scores], [wanted]) and torch.equal(logits.gather(1, found), highest):
                break
        else:
            return leave(module)

    def forward(hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = hidden_states.reshape(-1, weight.shape[1])
        few = few_rows_kernels.takes(x)
        logits = few_rows_kernels.linear(x, weight, None) if few else nn.functional.linear(x, weight)
        return logits, *expert_kernels.choose(logits, top, normalized=normalized, dtype=wanted.dtype)

    module.forward = forward
    return 1


def _has_bias(module: Any) -> bool:
    """True if a router adds something to its logits or scores."""
    return any("bias" in name for name, _ in (*module.named_parameters(), *module.named_buffers()))
