"""Linear layers with weights in FP8 (e4m3) and a scale for each output.

On a GPU up to 16 tokens are multiplied by kernels of our own and more by tensor cores, which round the tokens to FP8
too (`gpu.fp8_kernels`). On a CPU a weight is widened for each product: the memory is that of FP8, the speed is not.
Embeddings and the output projection keep the model's own type, since what they round goes straight into the logits.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import nn

from openai_bls.core.manifest import EngineLoadError
from openai_bls_transformers.fp8_numbers import FP8, quantize_weight, round_rows

_ALIGNMENT = 16
"""Inputs and outputs that the tensor cores' products take are multiples of this."""
_ROUTER = re.compile(r"(^|\.)(gate|router|shared_expert_gate)$")
_WIDENED_OUTPUTS = 2048
"""Outputs of a weight that are widened at a time."""


class Fp8Linear(nn.Module):  # type: ignore[misc]
    """A linear layer, or several that share their input."""

    plain_rounds: ClassVar[bool | None] = None
    """True if the plain pass that runs rounds its inputs, None if none runs (`plain_products`)."""

    def __init__(
        self, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, input_dtype: torch.dtype
    ) -> None:
        """Take over tensors.

        Args:
            weight: [outputs, inputs] in FP8, contiguous.
            scale: float32 [outputs, 1].
            bias: [outputs] in the type of inputs.
            input_dtype: type of inputs and outputs, the model's own.
        """
        super().__init__()
        self.input_dtype = input_dtype
        self.out_features, self.in_features = weight.shape
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.weight_scale = nn.Parameter(scale, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., inputs] to [..., outputs]."""
        if x.is_cuda and self.plain_rounds is None:
            from openai_bls_transformers.gpu import fp8_kernels

            return fp8_kernels.linear(x, self.weight, self.weight_scale, self.bias)
        rows = round_rows(x) if self.plain_rounds else x
        return widened_linear(rows, self.weight, self.weight_scale, self.bias)

    def gated(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        """`silu(gate) * up`, or with `gelu`, the gate's outputs being the first half."""
        if x.is_cuda and self.plain_rounds is None and activation == "silu":
            from openai_bls_transformers.gpu import fp8_kernels

            return fp8_kernels.gated_linear(x, self.weight, self.weight_scale, self.bias)
        gate, up = self(x).chunk(2, -1)
        if activation == "gelu":
            return nn.functional.gelu(gate, approximate="tanh") * up
        return nn.functional.silu(gate) * up


@contextlib.contextmanager
def plain_products(*, rounded: bool) -> Iterator[None]:
    """Let all layers of this process multiply by PyTorch's own products of widened weights, on a GPU as well.

    Args:
        rounded: the inputs are rounded to FP8 first, as tensor cores have them.
    """
    before, Fp8Linear.plain_rounds = Fp8Linear.plain_rounds, rounded
    try:
        yield
    finally:
        Fp8Linear.plain_rounds = before


def widened_linear(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """`torch.nn.functional.linear` with a weight in FP8, widened to the type of `x` some outputs at a time."""
    parts = zip(weight.split(_WIDENED_OUTPUTS), scale.split(_WIDENED_OUTPUTS), strict=True)
    found = [nn.functional.linear(x, (part.float() * scales).to(x.dtype)) for part, scales in parts]
    product = found[0] if len(found) == 1 else torch.cat(found, -1)
    return product if bias is None else product + bias


def joined(layers: list[Fp8Linear]) -> Fp8Linear:
    """One layer with the outputs of all, whose own weights become parts of its."""
    weight, scale = (
        torch.cat([getattr(layer, name).data.view(kind) for layer in layers]).view(dtype)
        for name, kind, dtype in (("weight", torch.uint8, FP8), ("weight_scale", torch.float32, torch.float32))
    )
    biases = [layer.bias.data for layer in layers if layer.bias is not None]
    found = Fp8Linear(weight, scale, torch.cat(biases) if biases else None, layers[0].input_dtype)
    start = 0
    for layer in layers:
        end = start + layer.out_features
        layer.weight.data, layer.weight_scale.data = weight[start:end], scale[start:end]
        if found.bias is not None and layer.bias is not None:
            layer.bias.data = found.bias.data[start:end]
        start = end
    return found


@torch.no_grad()  # type: ignore[untyped-decorator]
def quantize(model: Any, device: torch.device) -> int:
    """Quantize the linear layers of `model`, which lies anywhere, onto `device`; returns how many.

    Args:
        model: a transformers causal language model.
        device: device for the weights in FP8.

    Raises:
        EngineLoadError: most of its weights are in no linear layer.
    """
    if any(".experts." in name and parameter.dim() > 2 for name, parameter in model.named_parameters()):
        raise EngineLoadError("--quant fp8 is for dense models: the weights of this one's experts are no linear layers")
    layers = {
        path: layer for path, layer in _linear_layers(model).items() if not _ROUTER.search(path) and is_aligned(layer)
    }
    if not layers:
        raise EngineLoadError("--quant fp8: the model has no linear layer beside its output projection")
    for path, layer in layers.items():
        weight, scale = quantize_weight(layer.weight.to(device))
        replace(model, path, weight, scale)
    return len(layers)


def _linear_layers(model: Any) -> dict[str, nn.Linear]:
    head = model.get_output_embeddings()
    return {path: module for path, module in model.named_modules() if type(module) is nn.Linear and module is not head}


def is_aligned(layer: Any) -> bool:
    """True if tensor cores take a weight of the layer's size; others keep the model's type."""
    return not (layer.in_features % _ALIGNMENT or layer.out_features % _ALIGNMENT)


def replace(model: Any, path: str, weight: torch.Tensor, scale: torch.Tensor) -> None:
    """Put an `Fp8Linear` in the place of the linear layer at `path`."""
    old = model.get_submodule(path)
    bias = None if old.bias is None else old.bias.data.to(weight.device)
    model.set_submodule(path, Fp8Linear(weight, scale, bias, old.weight.dtype))


def is_quantized(model: Any) -> bool:
    """True if a model has weights in FP8."""
    return any(isinstance(module, Fp8Linear) for module in model.modules())
