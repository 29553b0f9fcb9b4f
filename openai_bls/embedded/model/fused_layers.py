"""Fused layers of a loaded model: one launch where transformers' code makes several.

A decoding step of a few sequences is short, and each launch costs it some microseconds even in a CUDA graph. Layers are
found by their shape; each replacement is tried on random numbers against the original and dropped where it differs.
Rounding is transformers' own, so answers stay the same but for the order of sums in matrix products.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from openai_bls.core.manifest import first_line
from openai_bls.embedded.attention_spec import LENGTH_DEPENDENT_ROPE
from openai_bls.embedded.model.fp8_layers import Fp8Linear, joined
from openai_bls.embedded.model.fused_attention import PROJECTIONS, fuse_attention
from openai_bls.embedded.model.fused_experts import fuse_experts, fuse_router
from openai_bls.embedded.model.fusion_trials import close, install, leave, normal
from openai_bls.embedded.model.vision_forward import language_modules

logger = logging.getLogger(__name__)

_PRE_NORM = {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}
"""Modules of a decoder layer that adds to the residual stream twice, each time what it computes from a norm of that."""


def fuse(model: Any) -> dict[str, int]:
    """Replace what can be replaced in `model`, on a GPU and in half precision; returns how many of which kind."""
    kinds = ("norms", "angles", "rotations", "gates", "projections", "vectors", "experts", "routers")
    counts = dict.fromkeys((*kinds, "attentions", "adds"), 0)
    for module in language_modules(model):
        try:
            counts["norms"] += _fuse_norm(module)
            counts["gates"] += _fuse_gate(module)
            counts["projections"] += _fuse_projections(module)
            counts["angles"] += _fuse_angles(module)
            counts["rotations"] += _fuse_rotation(module)
            counts["vectors"] += _use_vector_kernel(module)
            counts["experts"] += fuse_experts(module)
            counts["routers"] += fuse_router(module)
            counts["attentions"] += fuse_attention(module)
        except Exception as error:  # of compilers and drivers
            reason = first_line(error)
            logger.warning("%s is left as it is: %s", type(module).__name__, reason)
            module.__dict__.pop("forward", None)
    last = _last_layer(model)
    for layer, norm in _norms_after(model):
        try:
            counts["adds"] += _fuse_adds(layer, norm, is_last=layer is last)
        except Exception as error:
            logger.warning("%s is left as it is: %s", type(layer).__name__, first_line(error))
    if model.device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # of the weights that were put together
    return counts


class FusedNorm:
    """RMS norm, which may have been computed together with the residual add before it."""

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        from openai_bls.embedded.gpu import fused_kernels

        self._add_norm = fused_kernels.add_rms_norm
        self._rms_norm = fused_kernels.rms_norm
        self._weight, self._epsilon = weight, epsilon
        self._ready: tuple[torch.Tensor, torch.Tensor] | None = None

    def add(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The sum, whose norm is kept until it is asked for."""
        self._ready = self._add_norm(x, residual, self._weight, self._epsilon)
        return self._ready[0]

    def __call__(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The norm, as the module's `forward`."""
        ready, self._ready = self._ready, None
        if ready is not None and ready[0] is hidden_states:
            return ready[1]
        return self._rms_norm(hidden_states, self._weight, self._epsilon)


def _fuse_norm(module: Any) -> int:
    if not type(module).__name__.endswith("RMSNorm") or not hasattr(module, "variance_epsilon"):
        return 0
    if module.weight.dim() != 1:
        return 0
    return install(module, FusedNorm(module.weight, module.variance_epsilon), module)


def _norms_after(model: Any) -> list[tuple[Any, Any]]:
    """Decoder layers, each with the norm that its output goes to."""
    found = []
    for module in language_modules(model):
        layers = getattr(module, "layers", None)
        if isinstance(layers, nn.ModuleList) and hasattr(module, "norm"):
            norms = [*(getattr(layer, "input_layernorm", None) for layer in layers[1:]), module.norm]
            found += list(zip(layers, norms, strict=True))
    return found


def narrows(model: Any) -> bool:
    """True if steps of `model` with paged attention take `last_layer_rows`, int32 [rows].

    The last layer then computes nothing behind attention for any other row, and the model's output has these alone.
    """
    return bool(getattr(_last_layer(model), "narrows", False))


def _last_layer(model: Any) -> Any:
    layers = getattr(model.get_decoder(), "layers", None)
    return layers[-1] if isinstance(layers, nn.ModuleList) else None


def _fuse_adds(layer: Any, norm_after: Any, *, is_last: bool) -> int:
    """Let the residual adds of a decoder layer be computed with the norms that follow them.

    The last one, if its attention is fused, lets go of the rows whose logits nobody wants.
    """
    if {name for name, _ in layer.named_children()} != _PRE_NORM:
        return 0
    within, after = (getattr(norm, "forward", None) for norm in (layer.post_attention_layernorm, norm_after))
    if not isinstance(within, FusedNorm) or not isinstance(after, FusedNorm):
        return 0

    narrows = is_last and "forward" in layer.self_attn.__dict__

    def forward(hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        kept = kwargs.get("last_layer_rows") if narrows else None
        if kept is not None:
            kwargs["kept_rows"] = kept
        attended, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **kwargs)
        if kept is not None:
            hidden_states = hidden_states.index_select(1, kept)
        hidden_states = within.add(hidden_states, attended)
        return after.add(hidden_states, layer.mlp(layer.post_attention_layernorm(hidden_states)))

    if not _adds_alike(layer, forward, norm_after):
        return leave(layer)
    layer.forward, layer.narrows = forward, narrows
    return 1


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
def _adds_alike(layer: Any, forward: Callable[..., torch.Tensor], norm_after: Any) -> bool:
    """True if `forward` does with attention and the feed-forward layer what the original of `layer` does."""
    original = type(layer).forward
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = [name for name, parameter in inspect.signature(original).parameters.items() if parameter.kind in kinds]
    arguments = {name: object() for name in (*named[2:], "another")}  # after the layer itself and its input
    stand_ins = {"self_attn": _Moved(1, None), "mlp": _Moved(2)}
    before = {name: layer._modules[name] for name in stand_ins}
    weight = layer.input_layernorm.weight
    layer._modules.update(stand_ins)
    try:
        for rows in (1, 3):
            trial = normal(1, rows, len(weight), of=layer.input_layernorm)
            wanted, found = original(layer, trial, **arguments), forward(trial, **arguments)
            if not close([found, norm_after(found)], [wanted, type(norm_after).forward(norm_after, wanted)]):
                return False
    finally:
        layer._modules.update(before)
    calls = [stand_in.asked for stand_in in stand_ins.values()]
    return all(asked[0::2] == asked[1::2] for asked in calls)


def _are_plain(layers: Iterable[Any]) -> bool:
    """True if these are linear layers of one type, in half precision or FP8, all with a bias or all without."""
    layers = list(layers)
    first = layers[0]
    return all(
        type(layer) in (nn.Linear, Fp8Linear)
        and "forward" not in layer.__dict__
        and layer.in_features == first.in_features
        and layer.weight.dtype == first.weight.dtype
        and (layer.bias is None) == (first.bias is None)
        for layer in layers
    )


class _Joined:
    """Linear layers put together, whose own weights become parts of one."""

    def __init__(self, layers: list[Any]) -> None:
        with torch.no_grad():
            self.weight = torch.cat([layer.weight.data for layer in layers])
            self.bias = None if layers[0].bias is None else torch.cat([layer.bias.data for layer in layers])
            start = 0
            for layer in layers:
                end = start + layer.out_features
                layer.weight.data = self.weight[start:end]
                if self.bias is not None:
                    layer.bias.data = self.bias[start:end]
                start = end

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return _linear(x, self.weight, self.bias)

    def gated(self, x: torch.Tensor) -> torch.Tensor:
        """`silu(gate) * up`, the gate's outputs being the first half."""
        from openai_bls.embedded.gpu import few_rows_kernels
        from openai_bls.embedded.gpu.fused_kernels import silu_mul

        if few_rows_kernels.takes(x):
            return few_rows_kernels.gated_linear(x, self.weight, self.bias)
        return silu_mul(nn.functional.linear(x, self.weight, self.bias))


def _put_together(layers: list[Any]) -> _Joined | Fp8Linear:
    return joined(layers) if isinstance(layers[0], Fp8Linear) else _Joined(layers)


def _fuse_gate(module: Any) -> int:
    names = ("gate_proj", "up_proj", "down_proj")
    if not all(hasattr(module, name) for name in names) or not hasattr(module, "act_fn"):
        return 0
    layers = [module.gate_proj, module.up_proj]
    if not _are_plain(layers) or "silu" not in type(module.act_fn).__name__.lower():
        return 0
    both, down = _put_together(layers), module.down_proj

    def forward(x: torch.Tensor) -> Any:
        return down(both.gated(x))

    return install(module, forward, module.gate_proj)


def _use_vector_kernel(module: Any) -> int:
    """Let a linear layer that is not a part of another have the kernel for one token."""
    if not isinstance(module, nn.Linear) or not _are_plain([module]):
        return 0
    if not module.weight.is_contiguous() or module.weight.untyped_storage().nbytes() != module.weight.nbytes:
        return 0
    return install(module, functools.partial(_linear, weight=module.weight, bias=module.bias), module)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    from openai_bls.embedded.gpu import few_rows_kernels

    if few_rows_kernels.takes(x):
        return few_rows_kernels.linear(x, weight, bias)
    return nn.functional.linear(x, weight, bias)


class _Shared:
    """Queries, keys and values of the same input in one product, handed out to three layers as they ask."""

    def __init__(self, layers: list[Any]) -> None:
        self._product = _put_together(layers)
        self._sizes = [layer.out_features for layer in layers]
        self._input: torch.Tensor | None = None
        self._parts: dict[int, torch.Tensor] = {}

    def part(self, place: int, x: torch.Tensor) -> torch.Tensor:
        """Output `place` for `x`; the product is made anew for another input, or when a part is asked for again."""
        if self._input is not x or place not in self._parts:
            self._input, self._parts = x, dict(enumerate(self._product(x).split(self._sizes, dim=-1)))
        result = self._parts.pop(place)
        if not self._parts:
            self._input = None
        return result


def _fuse_projections(module: Any) -> int:
    if not all(hasattr(module, name) for name in PROJECTIONS):
        return 0
    layers = [getattr(module, name) for name in PROJECTIONS]
    if not _are_plain(layers):
        return 0
    shared = _Shared(layers)
    done = 0
    for place, layer in enumerate(layers):

        def forward(x: torch.Tensor, place: int = place) -> torch.Tensor:
            return shared.part(place, x)

        done += install(layer, forward, layer)
    return int(done == len(layers))


def _global(module: Any, name: str) -> Any:
    """`name` in the Python module that defines the class of `module`."""
    return vars(sys.modules.get(type(module).__module__, sys)).get(name)


def _fuse_angles(module: Any) -> int:
    """Cosine and sine of positions in one launch, where they do not depend on how long the sequence is."""
    if not all(hasattr(module, name) for name in ("inv_freq", "attention_scaling")):
        return 0
    if getattr(module, "rope_type", None) in LENGTH_DEPENDENT_ROPE:
        return 0
    from openai_bls.embedded.gpu.fused_kernels import angles

    original = type(module).forward
    frequencies, scaling = module.inv_freq.float().contiguous(), module.attention_scaling

    def forward(x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if position_ids.dim() == 2 and position_ids.is_contiguous():
            return angles(position_ids, frequencies, scaling, x.dtype)
        found: tuple[torch.Tensor, torch.Tensor] = original(module, x, position_ids)
        return found

    trial = torch.tensor([[0, 1, 17, 4095, 32767]], dtype=torch.int32, device=frequencies.device)
    for dtype in (torch.bfloat16, torch.float16):
        x = torch.empty(0, dtype=dtype, device=frequencies.device)
        if not close(forward(x, trial), original(module, x, trial)):
            return leave(module)
    module.forward = forward
    return 1


def _fuse_rotation(module: Any) -> int:
    """Replace the function that the attention's code calls, for all models of that code; others pass through."""
    original = _global(module, "apply_rotary_pos_emb")
    if original is None or not all(hasattr(module, name) for name in (*PROJECTIONS, "head_dim")):
        return 0
    if hasattr(original, "original"):
        return 1
    from openai_bls.embedded.gpu.fused_kernels import rotary

    def rotate(q: Any, k: Any, cos: Any, sin: Any, *more: Any, **named: Any) -> Any:
        plain = not more and not named and q.dim() == 4 and q.shape[0] == cos.shape[0] == 1
        if plain and q.is_cuda and cos.shape[-1] == q.shape[-1] and cos.dtype == q.dtype:
            return rotary(q, k, cos, sin)
        return original(q, k, cos, sin, *more, **named)

    of, size = module.q_proj, module.head_dim
    q, k = normal(1, 3, 4, size, of=of).transpose(1, 2), normal(1, 3, 2, size, of=of).transpose(1, 2)
    cos, sin = normal(1, 3, size, of=of), normal(1, 3, size, of=of)
    if not close(rotary(q, k, cos, sin), original(q, k, cos, sin)):
        return leave(module)
    rotate.original = original  # type: ignore[attr-defined]
    vars(sys.modules[type(module).__module__])["apply_rotary_pos_emb"] = rotate
    return 1
