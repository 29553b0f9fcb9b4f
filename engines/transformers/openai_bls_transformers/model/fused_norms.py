"""Fused norms: RMS norms in one launch, and residual adds of a decoder layer in that of the norm that follows them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from openai_bls_transformers.model.fusion_trials import close, install, leave, normal

if TYPE_CHECKING:
    from openai_bls_transformers.gpu.fused_kernels import NormForm

_PRE_NORM = {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}
"""Modules of a decoder layer that adds to the residual stream twice, each time what it computes from a norm of that."""
_FOUR_NORMS = _PRE_NORM | {"pre_feedforward_layernorm", "post_feedforward_layernorm"}
"""Modules of one that adds norms of what it computes (Gemma 2 and 3)."""

_ROWS = 16
"""Rows by which forms of a norm are told apart: by their rounding."""


class FusedNorm:
    """RMS norm, which may have been computed together with the residual add before it."""

    def __init__(self, weight: torch.Tensor, epsilon: float, form: NormForm) -> None:
        """Take the place of a norm.

        Args:
            weight: factors, [size].
            epsilon: number that is added to the mean square.
            form: how it comes to its factors.
        """
        from openai_bls_transformers.gpu import fused_kernels

        self._add_norm = fused_kernels.add_rms_norm
        self._rms_norm = fused_kernels.rms_norm
        self.weight, self.kind = weight, (epsilon, form)
        self._ready: tuple[torch.Tensor, torch.Tensor] | None = None

    def add(self, residual: torch.Tensor, x: torch.Tensor, before: torch.Tensor | None = None) -> torch.Tensor:
        """The sum, whose norm is kept until it is asked for; with `before`, of the norm of `x` with that weight."""
        self._ready = self._add_norm(x, residual, self.weight, *self.kind, before)
        return self._ready[0]

    def __call__(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The norm, as the module's `forward`."""
        ready, self._ready = self._ready, None
        if ready is not None and ready[0] is hidden_states:
            return ready[1]
        return self._rms_norm(hidden_states, self.weight, *self.kind)


def fuse_norm(module: Any) -> int:
    """Let an RMS norm be one launch; returns the number of norms that are."""
    name, weight = type(module).__name__, getattr(module, "weight", None)
    if not name.endswith("RMSNorm") or weight is None or weight.dim() != 1:
        return 0
    if hasattr(module, "variance_epsilon"):
        norms = [FusedNorm(weight, module.variance_epsilon, form) for form in ("early", "late")]
        return install(module, max(norms, key=functools.partial(_equal, module)), module)
    if "Gemma" in name and hasattr(module, "eps"):
        return install(module, FusedNorm(weight, module.eps, "offset"), module)
    return 0


@torch.no_grad()  # type: ignore[untyped-decorator]
def _equal(module: Any, norm: FusedNorm) -> int:
    """Numbers of some random rows that `norm` makes exactly as the original does."""
    trial = normal(1, _ROWS, len(norm.weight), of=module)
    return int((norm(trial) == type(module).forward(module, trial)).sum())


def fuse_adds(layer: Any, norm_after: Any, *, is_last: bool) -> int:
    """Let the residual adds of a decoder layer be computed with the norms that follow them.

    The last one, if its attention is fused, lets go of the rows whose logits nobody wants.
    """
    names = {name for name, _ in layer.named_children()}
    if names == _PRE_NORM:
        fused = [layer.post_attention_layernorm, norm_after]
    elif names == _FOUR_NORMS:
        fused = [layer.pre_feedforward_layernorm, norm_after]
    else:
        return 0
    within, after = (getattr(norm, "forward", None) for norm in fused)
    if not isinstance(within, FusedNorm) or not isinstance(after, FusedNorm):
        return 0
    of_sums = _norms_of_sums(layer, {within.kind, after.kind}) if names == _FOUR_NORMS else (None, None)
    if of_sums is None:
        return 0
    before_within, before_after = of_sums
    narrows = is_last and "forward" in layer.self_attn.__dict__

    def forward(hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        kept = kwargs.get("last_layer_rows") if narrows else None
        if kept is not None:
            kwargs["kept_rows"] = kept
        attended, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **kwargs)
        if kept is not None:
            hidden_states = hidden_states.index_select(1, kept)
        hidden_states = within.add(hidden_states, attended, before_within)
        made = layer.mlp(fused[0](hidden_states))
        return after.add(hidden_states, made[0] if isinstance(made, tuple) else made, before_after)

    # gpt-oss wants the scores of its router as well.
    if not any(_adds_alike(layer, forward, norm_after, mlp) for mlp in (_Moved(2), _Moved(2, None))):
        return leave(layer)
    layer.forward, layer.narrows = forward, narrows
    return 1


def _norms_of_sums(layer: Any, kinds: set[tuple[float, NormForm]]) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Weights of the norms of what a layer of four norms adds; None if they are of another kind than the others."""
    norms = [layer.post_attention_layernorm.forward, layer.post_feedforward_layernorm.forward]
    if not all(isinstance(norm, FusedNorm) and {norm.kind} == kinds for norm in norms):
        return None
    return norms[0].weight, norms[1].weight


class _Moved(nn.Module):  # type: ignore[misc]
    """What attention and the feed-forward layer are in a trial: the input, its numbers moved by some places."""

    def __init__(self, places: int, *more: None) -> None:
        super().__init__()
        self._places, self._more = places, more
        self.asked: list[Any] = []
        """Other arguments of each call."""

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        self.asked.append((args, kwargs))
        moved = hidden_states.roll(self._places, -1)
        return (moved, *self._more) if self._more else moved


@torch.no_grad()  # type: ignore[untyped-decorator]
def _adds_alike(layer: Any, forward: Callable[..., torch.Tensor], norm_after: Any, mlp: _Moved) -> bool:
    """True if `forward` does with attention and the feed-forward layer what the original of `layer` does."""
    original = type(layer).forward
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = [name for name, parameter in inspect.signature(original).parameters.items() if parameter.kind in kinds]
    arguments = {name: object() for name in (*named[2:], "another")}  # after the layer itself and its input
    stand_ins = {"self_attn": _Moved(1, None), "mlp": mlp}
    before = {name: layer._modules[name] for name in stand_ins}
    weight = layer.input_layernorm.weight
    layer._modules.update(stand_ins)
    try:
        for rows in (1, 3):
            trial = normal(1, rows, len(weight), of=layer.input_layernorm)
            try:
                wanted = original(layer, trial, **arguments)
            except (TypeError, ValueError):  # of what the feed-forward layer gives
                return False
            found = forward(trial, **arguments)
            if not close([found, norm_after(found)], [wanted, type(norm_after).forward(norm_after, wanted)]):
                return False
    finally:
        layer._modules.update(before)
    calls = [stand_in.asked for stand_in in stand_ins.values()]
    return all(asked[0::2] == asked[1::2] for asked in calls)
