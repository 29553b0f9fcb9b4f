"""Fused mixtures of experts: the router's choice in one launch, and the experts in two to four."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from openai_bls_transformers.model.fusion_trials import SCALES, close, leave, normal

if TYPE_CHECKING:
    from openai_bls_transformers.gpu.expert_kernels import Experts

_TRIAL_TOKENS = 40
_MULTIPLE = 16
"""Number that the sizes of experts must be multiples of, for aligned loads."""


def fuse_experts(module: Any) -> int:
    """Let stacked experts run by Triton kernels; returns 1 if they do.

    These are transformers' experts with the weights `gate_up_proj` and `down_proj`, each in one tensor, with SiLU or
    gpt-oss's gate. Weights that lie input by input are put output by output, which their shapes do not show.
    """
    if not _are_stacked(module):
        return 0
    from openai_bls_transformers.gpu import expert_kernels

    experts, original = _experts(module), type(module).forward

    # The arguments have names of their own in each class, and transformers' blocks give them by their places.
    def forward(hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
        if expert_kernels.takes(hidden_states, top_k_index, top_k_weights):
            return expert_kernels.mix(hidden_states, experts, top_k_index, top_k_weights)
        found: torch.Tensor = original(module, hidden_states, top_k_index, top_k_weights)
        return found

    if not _experts_alike(module, experts, forward):
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
    if not _is_by_input(module) and not (gate_up.is_contiguous() and down.is_contiguous()):
        return False
    gate_up, down = _by_output(module)
    count, size, inner = down.shape
    has_more = any(getattr(module, name, False) for name in ("has_post_expert_norm", "_is_expert_parallel"))
    return bool(
        gate_up.shape == (count, 2 * inner, size)
        and gate_up.dtype == down.dtype
        and not has_more
        and not size % _MULTIPLE
        and not inner % _MULTIPLE
        and (_has_silu(module) or _clamp(module) is not None)
    )


def _is_by_input(module: Any) -> bool:
    """True if the class has the inputs of its weights before the outputs."""
    return bool(getattr(module, "is_transposed", False))


def _by_output(module: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of both weights, [experts, outputs, inputs]."""
    weights = module.gate_up_proj.detach(), module.down_proj.detach()
    return (weights[0].mT, weights[1].mT) if _is_by_input(module) else weights


def _has_silu(module: Any) -> bool:
    return "silu" in type(getattr(module, "act_fn", None)).__name__.lower()


def _clamp(module: Any) -> tuple[float, float] | None:
    """Factor and limit of gpt-oss's gate, if a module has numbers by these names."""
    alpha, limit = getattr(module, "alpha", None), getattr(module, "limit", None)
    if isinstance(alpha, int | float) and isinstance(limit, int | float):
        return float(alpha), float(limit)
    return None


def _experts(module: Any) -> Experts:
    """The weights as the kernels take them; those of `module` are moved where they lie otherwise."""
    from openai_bls_transformers.gpu import expert_kernels

    if _is_by_input(module):
        for weight in (module.gate_up_proj, module.down_proj):
            weight.data = weight.data.mT.contiguous().mT
    gate_up, down = _by_output(module)
    found = expert_kernels.Experts(gate_up, down, interleaved=not getattr(module, "is_concatenated", True))
    if getattr(module, "has_bias", False):
        biases = [module.gate_up_proj_bias.detach().contiguous(), module.down_proj_bias.detach().contiguous()]
        found = found._replace(gate_up_bias=biases[0], down_bias=biases[1])
    clamp = None if _has_silu(module) else _clamp(module)
    return found if clamp is None else found._replace(clamp=expert_kernels.Clamp(*clamp))


@torch.no_grad()  # type: ignore[untyped-decorator]
def _experts_alike(module: Any, experts: Experts, forward: Any) -> bool:
    """True if `forward` gives for random tokens and choices what the class of `module` does, by every program."""
    from openai_bls_transformers.gpu import expert_kernels

    down = experts.down
    count, size, _ = down.shape
    top = min(count, getattr(getattr(module, "config", None), "num_experts_per_tok", None) or 2)
    for tokens, scale in itertools.product(expert_kernels.sizes(top, count), SCALES):
        x = torch.randn(tokens, size, dtype=down.dtype, device=down.device) * scale
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
    bias = getattr(module, "bias", None)
    if not isinstance(weight, nn.Parameter) or weight.dim() != 2 or _has_other_bias(module):
        return 0
    from openai_bls_transformers.gpu import expert_kernels, few_rows_kernels

    with torch.no_grad():
        trial = normal(_TRIAL_TOKENS, weight.shape[1], of=module)
        logits, wanted, chosen = type(module).forward(module, trial)
        if not close([logits], [nn.functional.linear(trial, weight, bias)]):
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
        logits = few_rows_kernels.linear(x, weight, bias) if few else nn.functional.linear(x, weight, bias)
        return logits, *expert_kernels.choose(logits, top, normalized=normalized, dtype=wanted.dtype)

    module.forward = forward
    return 1


def _has_other_bias(module: Any) -> bool:
    """True if a router adds something to its scores, or to its logits by another name than a linear layer's."""
    return any("bias" in name and name != "bias" for name, _ in (*module.named_parameters(), *module.named_buffers()))
