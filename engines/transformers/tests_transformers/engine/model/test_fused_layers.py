"""Operations put together compute what they did; the kernels are replaced by plain PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.nn.functional import gelu, linear, silu
from transformers import AutoModelForCausalLM, DeepseekV4Config
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4MLP
from transformers.models.qwen2 import modeling_qwen2

from openai_bls_transformers import gpu
from openai_bls_transformers.model import fused_layers
from openai_bls_transformers.model.fused_norms import FusedNorm
from tests_transformers.engine.gpu import reference_kernels

ORIGINAL_ROTATION = modeling_qwen2.apply_rotary_pos_emb
ORIGINAL_LAYER = modeling_qwen2.Qwen2DecoderLayer.forward


def rotary_to_cache(q: Any, k: Any, v: Any, angles: Any, key_cache: Any, value_cache: Any, slots: Any) -> Any:
    cos, sin = angles
    q, k = ORIGINAL_ROTATION(q[None], k[None], cos[None], sin[None], unsqueeze_dim=2)
    reference_kernels.write(key_cache, slots, k[0])
    reference_kernels.write(value_cache, slots, v)
    return q[0]


def plain_angles(positions: Any, frequencies: Any, scaling: float, dtype: Any) -> Any:
    found = (positions.unsqueeze(-1) * frequencies).repeat(1, 1, 2)
    return (found.cos() * scaling).to(dtype), (found.sin() * scaling).to(dtype)


def rms_norm(x: Any, weight: Any, epsilon: float, form: str = "early") -> Any:
    scaled = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + epsilon)
    if form == "early":
        scaled = scaled.to(x.dtype)
    return ((weight.float() + (form == "offset")) * scaled).to(x.dtype)


def add_rms_norm(x: Any, residual: Any, weight: Any, epsilon: float, form: str = "early", before: Any = None) -> Any:
    total = residual + (x if before is None else rms_norm(x, before, epsilon, form))
    return total, rms_norm(total, weight, epsilon, form)


def replace_kernels(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Plain PyTorch in the place of the kernels of fused operations; what replaces `fused_kernels`."""
    fake: Any = ModuleType("fused_kernels")
    fake.rms_norm = rms_norm
    fake.add_rms_norm = add_rms_norm
    fake.gelu_mul = lambda x: gelu(x.chunk(2, -1)[0], approximate="tanh") * x.chunk(2, -1)[1]
    fake.silu_mul = lambda x: silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]
    fake.rotary = ORIGINAL_ROTATION
    fake.rotary_to_cache = rotary_to_cache
    fake.angles = plain_angles
    monkeypatch.setitem(sys.modules, "openai_bls_transformers.gpu.fused_kernels", fake)
    monkeypatch.setattr(gpu, "fused_kernels", fake, raising=False)
    products: Any = ModuleType("few_rows_kernels")
    products.takes = lambda x: x.numel() == x.shape[-1]
    products.linear = linear
    products.gated_linear = lambda x, weight, bias: fake.silu_mul(linear(x, weight, bias))
    monkeypatch.setitem(sys.modules, "openai_bls_transformers.gpu.few_rows_kernels", products)
    monkeypatch.setattr(gpu, "few_rows_kernels", products, raising=False)
    # `fuse` sets it in transformers' module; the old value comes back with the test's end.
    monkeypatch.setattr(modeling_qwen2, "apply_rotary_pos_emb", ORIGINAL_ROTATION)
    return fake


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Any:
    return replace_kernels(monkeypatch)


@pytest.fixture
def model(checkpoint: Path) -> Any:
    found = AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32").eval()
    for name, parameter in found.named_parameters():
        if name.endswith(("norm.weight", "bias")):
            torch.nn.init.normal_(parameter)
    return found


IDS = torch.tensor([[5, 6, 7, 8, 9]])


@torch.no_grad()  # type: ignore[untyped-decorator]
def logits(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(IDS, use_cache=False).logits
    return found


@pytest.mark.usefixtures("kernels")
def test_logits_are_the_same(model: Any) -> None:
    before = logits(model)
    bytes_before = sum(parameter.nbytes for parameter in model.parameters())
    # Two layers with two norms each, and the last norm.
    counts = {
        "norms": 5,
        "angles": 1,
        "rotations": 2,
        "gates": 2,
        "projections": 2,
        "vectors": 5,
        "experts": 0,
        "routers": 0,
        "attentions": 2,
        "adds": 2,
    }
    assert fused_layers.fuse(model) == counts
    torch.testing.assert_close(logits(model), before, rtol=1e-4, atol=1e-4)
    assert sum(parameter.nbytes for parameter in model.parameters()) == bytes_before
    attention = model.model.layers[0].self_attn
    assert attention.k_proj.weight.untyped_storage().data_ptr() == attention.q_proj.weight.untyped_storage().data_ptr()


def test_what_comes_out_different_is_left_alone(model: Any, kernels: Any) -> None:
    kernels.rms_norm = lambda x, weight, epsilon, form: x
    kernels.rotary = lambda q, k, cos, sin: (q, k)
    before = logits(model)
    counts = {
        "norms": 0,
        "angles": 1,
        "rotations": 0,
        "gates": 2,
        "projections": 2,
        "vectors": 5,
        "experts": 0,
        "routers": 0,
        "attentions": 0,
        "adds": 0,
    }
    assert fused_layers.fuse(model) == counts
    torch.testing.assert_close(logits(model), before, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("kernels")
def test_a_gate_with_a_limit_is_left_alone(model: Any) -> None:
    """Which small numbers do not reach."""
    torch.manual_seed(0)
    size = model.config.hidden_size
    config = DeepseekV4Config(hidden_size=size, intermediate_size=4 * size, swiglu_limit=7.0)
    for layer in model.model.layers:
        layer.mlp = DeepseekV4MLP(config).eval()
    assert fused_layers.fuse(model)["gates"] == 0


def test_what_does_not_run_is_left_alone(model: Any, kernels: Any) -> None:
    def broken(*arguments: Any) -> Any:
        raise RuntimeError("no compiler")

    kernels.rms_norm = kernels.silu_mul = kernels.rotary = broken
    before = logits(model)
    assert fused_layers.fuse(model)["norms"] == 0
    torch.testing.assert_close(logits(model), before, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("kernels")
def test_a_norm_takes_what_the_add_before_it_made(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fused_layers.fuse(model)
    norms = [module.forward for module in model.modules() if isinstance(module.__dict__.get("forward"), FusedNorm)]
    before = logits(model)
    alone = Mock(side_effect=norms[0]._rms_norm)
    for norm in norms:
        monkeypatch.setattr(norm, "_rms_norm", alone)
    torch.testing.assert_close(logits(model), before)
    alone.assert_called_once()  # for the first, which has no add before it
    x = torch.randn(1, 3, 64)
    total = norms[-1].add(x, x)
    torch.testing.assert_close(norms[-1](x), norms[-1](total))


def _post_norm(self: Any, hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    attended, _ = self.self_attn(hidden_states=hidden_states, **kwargs)
    hidden_states = hidden_states + self.input_layernorm(attended)
    return hidden_states + self.post_attention_layernorm(self.mlp(hidden_states))


def _scaled(self: Any, hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
    hidden_states = hidden_states + 0.8 * attended
    return hidden_states + 0.8 * self.mlp(self.post_attention_layernorm(hidden_states))


def _without_positions(self: Any, hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    kwargs.pop("another")
    return ORIGINAL_LAYER(self, hidden_states, **kwargs)


def _pair(self: Any, hidden_states: torch.Tensor, **kwargs: Any) -> Any:
    return (ORIGINAL_LAYER(self, hidden_states, **kwargs),)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("forward", [_post_norm, _scaled, _without_positions, _pair])
def test_layers_of_another_form_are_left_alone(model: Any, forward: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modeling_qwen2.Qwen2DecoderLayer, "forward", forward)
    assert fused_layers.fuse(model)["adds"] == 0
    layer = model.model.layers[0]
    assert "forward" not in layer.__dict__
    assert isinstance(layer.mlp, modeling_qwen2.Qwen2MLP)
