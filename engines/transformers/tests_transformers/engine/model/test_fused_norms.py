"""Fused norms of Gemma's layers, which have four; the kernels are replaced by plain PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from openai_bls_transformers.model import fused_layers, fused_norms
from tests_transformers.architectures.checkpoint import make_checkpoint
from tests_transformers.architectures.table import CASES
from tests_transformers.engine.model.test_fused_layers import kernels, logits

__all__ = ["kernels"]  # fixtures

ORIGINAL_ROTATION = modeling_gemma3.apply_rotary_pos_emb


@pytest.fixture
def gemma(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    # `fuse` sets it in transformers' module; the old value comes back with the test's end.
    monkeypatch.setattr(modeling_gemma3, "apply_rotary_pos_emb", ORIGINAL_ROTATION)
    case = CASES["gemma3_text"]
    make_checkpoint(tmp_path, case.model_type, case.changes, case.seed)
    return AutoModelForCausalLM.from_pretrained(tmp_path, dtype="float32").eval()


@pytest.mark.usefixtures("kernels")
def test_logits_of_gemma_are_the_same(gemma: Any) -> None:
    before = logits(gemma)
    found = fused_layers.fuse(gemma)
    # Of each layer, its heads' two included, and the last.
    assert {name: found[name] for name in ("norms", "gates", "adds", "attentions")} == {
        "norms": 4 * 6 + 1,
        "gates": 4,
        "adds": 4,
        "attentions": 4,
    }
    torch.testing.assert_close(logits(gemma), before, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("kernels")
def test_a_norm_of_another_kind_is_added_alone(gemma: Any) -> None:
    gemma.model.layers[1].post_feedforward_layernorm.eps = 0.5
    before = logits(gemma)
    assert fused_layers.fuse(gemma)["adds"] == 3
    torch.testing.assert_close(logits(gemma), before, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("kernels")
def test_layers_of_four_norms_in_another_order_are_left_alone(gemma: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Any, hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
        hidden_states = self.post_attention_layernorm(hidden_states + attended)
        return hidden_states + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(hidden_states)))

    monkeypatch.setattr(modeling_gemma3.Gemma3DecoderLayer, "forward", forward)
    before = logits(gemma)
    assert fused_layers.fuse(gemma)["adds"] == 0
    torch.testing.assert_close(logits(gemma), before, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("norm", "form"), [(Qwen2RMSNorm, "early"), (GptOssRMSNorm, "late")])
def test_a_norm_is_rounded_where_the_original_is(norm: Any, form: str) -> None:
    module = norm(64, eps=1e-6).to(torch.bfloat16)
    torch.nn.init.normal_(module.weight)
    assert fused_norms.fuse_norm(module) == 1
    assert module.forward.kind == (1e-6, form)
