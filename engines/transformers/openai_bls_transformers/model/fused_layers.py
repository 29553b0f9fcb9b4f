"""Fused layers of a loaded model: one launch where transformers' code makes several.

A decoding step of a few sequences is short, and each launch costs it some microseconds even in a CUDA graph. Layers are
found by their shape; each replacement is tried on random numbers against the original and dropped where it differs.
Rounding is transformers' own, so answers stay the same but for the order of sums in matrix products.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from openai_bls.core.manifest import first_line
from openai_bls_transformers.attention_spec import LENGTH_DEPENDENT_ROPE
from openai_bls_transformers.model.fp8_layers import Fp8Linear, joined
from openai_bls_transformers.model.fused_attention import PROJECTIONS, fuse_attention
from openai_bls_transformers.model.fused_experts import fuse_experts, fuse_router
from openai_bls_transformers.model.fused_norms import fuse_adds, fuse_norm
from openai_bls_transformers.model.fusion_trials import close, install, leave, normal
from openai_bls_transformers.model.vision_forward import language_modules

logger = logging.getLogger(__name__)


def fuse(model: Any) -> dict[str, int]:
    """Replace what can be replaced in `model`, on a GPU and in half precision; returns how many of which kind."""
    kinds = ("norms", "angles", "rotations", "gates", "projections", "vectors", "experts", "routers")
    counts = dict.fromkeys((*kinds, "attentions", "adds"), 0)
    for module in language_modules(model):
        try:
            counts["norms"] += fuse_norm(module)
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
            counts["adds"] += fuse_adds(layer, norm, is_last=layer is last)
        except Exception as error:
            logger.warning("%s is left as it is: %s", type(layer).__name__, first_line(error))
    if model.device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # of the weights that were put together
    return counts


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

    def gated(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        """`silu(gate) * up`, or with gelu, the gate's outputs being the first half."""
        from openai_bls_transformers.gpu import few_rows_kernels, fused_kernels

        if activation == "gelu":
            return fused_kernels.gelu_mul(self(x))
        if few_rows_kernels.takes(x):
            return few_rows_kernels.gated_linear(x, self.weight, self.bias)
        return fused_kernels.silu_mul(nn.functional.linear(x, self.weight, self.bias))


def _put_together(layers: list[Any]) -> _Joined | Fp8Linear:
    return joined(layers) if isinstance(layers[0], Fp8Linear) else _Joined(layers)


def _fuse_gate(module: Any) -> int:
    names = ("gate_proj", "up_proj", "down_proj")
    if not all(hasattr(module, name) for name in names) or not hasattr(module, "act_fn"):
        return 0
    layers = [module.gate_proj, module.up_proj]
    kinds = {"silu": "silu", "gelutanh": "gelu"}
    name = type(module.act_fn).__name__.lower()
    activation = next((kind for part, kind in kinds.items() if part in name), None)
    if not _are_plain(layers) or activation is None:
        return 0
    both, down = _put_together(layers), module.down_proj

    def forward(x: torch.Tensor) -> Any:
        return down(both.gated(x, activation))

    return install(module, forward, module.gate_proj)


def _use_vector_kernel(module: Any) -> int:
    """Let a linear layer that is not a part of another have the kernel for one token."""
    if not isinstance(module, nn.Linear) or not _are_plain([module]):
        return 0
    if not module.weight.is_contiguous() or module.weight.untyped_storage().nbytes() != module.weight.nbytes:
        return 0
    return install(module, functools.partial(_linear, weight=module.weight, bias=module.bias), module)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    from openai_bls_transformers.gpu import few_rows_kernels

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
    from openai_bls_transformers.gpu.fused_kernels import angles

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
    from openai_bls_transformers.gpu.fused_kernels import rotary

    def rotate(q: Any, k: Any, cos: Any, sin: Any, *more: Any, **named: Any) -> Any:
        plain = not more and not named and q.dim() == 4 and q.shape[0] == cos.shape[0] == 1
        if plain and q.is_cuda and cos.shape[-1] == q.shape[-1] and cos.dtype == q.dtype:
            return rotary(q, k, cos, sin)
        return original(q, k, cos, sin, *more, **named)

    of, size = module.q_proj, module.head_dim
    q, k = normal(1, 3, 4, size, of=of).transpose(1, 2), normal(1, 3, 2, size, of=of).transpose(1, 2)
    cos, sin = normal(1, 3, size, of=of), normal(1, 3, size, of=of)
    try:
        wanted = original(q, k, cos, sin)
    except RuntimeError:  # it takes angles of another shape
        return 0
    if not close(rotary(q, k, cos, sin), wanted):
        return leave(module)
    rotate.original = original  # type: ignore[attr-defined]
    vars(sys.modules[type(module).__module__])["apply_rotary_pos_emb"] = rotate
    return 1
