"""Block reuse and chunked prefill of models that lack them, by their name or their states."""

from __future__ import annotations

from typing import Any

import pytest

from openai_bls.core.settings import EngineSettings
from openai_bls_tensorrt_llm.installed.interface import Version
from openai_bls_tensorrt_llm.recipe.gpus import find_gpu
from openai_bls_tensorrt_llm.recipe.model.states import has_states
from openai_bls_tensorrt_llm.recipe.options import TensorRtLlmOptions
from openai_bls_tensorrt_llm.recipe.plan.features import NO_CHUNKED_PREFILL, NO_REUSE, with_features
from openai_bls_tensorrt_llm.recipe.plan.planning import described, plan
from tests.paths import ROOT
from tests_tensorrt_llm.recipe import published_models
from tests_tensorrt_llm.recipe.plan.test_planning import asked

NEMOTRON_H: dict[str, Any] = {
    "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "hidden_size": 256, "num_hidden_layers": 4,
    "layers_block_type": ["mamba", "moe", "attention", "mlp"], "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "vocab_size": 512, "mamba_num_heads": 8, "mamba_head_dim": 64, "n_groups": 2, "ssm_state_size": 16,
    "conv_kernel": 4, "max_position_embeddings": 4096,
}  # fmt: skip
QWEN3_NEXT: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "hidden_size": 256, "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"], "num_attention_heads": 4, "num_key_value_heads": 2,
    "linear_num_value_heads": 8, "linear_num_key_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4, "vocab_size": 512, "max_position_embeddings": 4096,
}  # fmt: skip
LLAMA = published_models.config("Llama-3.2-1B")


@pytest.mark.parametrize(
    ("config", "version", "reuse"),
    [
        (NEMOTRON_H, Version(1, 2, 1), False),
        # Later releases know by themselves.
        (NEMOTRON_H, Version(1, 3), None),
        (QWEN3_NEXT, Version(1, 2, 1), False),
        (QWEN3_NEXT, Version(1, 4), False),
        (LLAMA, Version(1, 2, 1), None),
    ],
)
def test_reuse_is_off_where_it_cannot_be(config: dict[str, Any], version: Version, reuse: bool | None) -> None:
    settings, found = with_features(EngineSettings(), config, "pytorch", version)
    assert (settings.enable_kv_cache_reuse, settings.enable_chunked_context) == (reuse, None)
    assert bool(found.notes) == (reuse is False)
    wanted = EngineSettings(enable_kv_cache_reuse=True)
    _, found = with_features(wanted, config, "pytorch", version)
    assert [problem.split(":")[0] for problem in found.problems] == ["--enable-kv-cache-reuse"] * (reuse is False)
    assert with_features(wanted, config, "tensorrt", version)[1].problems == ()


@pytest.mark.parametrize("name", NO_CHUNKED_PREFILL)
def test_chunked_prefill_is_off_where_it_cannot_be(name: str) -> None:
    config = {"architectures": [name]}
    settings, found = with_features(EngineSettings(), config, "pytorch", Version(1, 4))
    assert settings.enable_chunked_context is False
    wanted = EngineSettings(enable_chunked_context=True)
    _, found = with_features(wanted, config, "pytorch", Version(1, 4))
    assert found.problems[0].startswith("--enable-chunked-context: ")


def test_models_with_states() -> None:
    assert has_states(NEMOTRON_H)
    assert has_states({"hybrid_override_pattern": "M-M*"})
    assert not has_states(LLAMA)
    request = asked(QWEN3_NEXT, TensorRtLlmOptions(flow="pytorch"))
    made = plan(request, Version(1, 2, 1), find_gpu("H100"))
    assert "turns enable_kv_cache_reuse off" in described(request, made)


def test_the_page_has_every_row() -> None:
    page = (ROOT / "engines" / "tensorrt_llm" / "docs" / "models.md").read_text(encoding="utf-8")
    text = page.partition("## Reuse and chunks")[2].partition("\n## ")[0]
    for name in (*NO_REUSE, *NO_CHUNKED_PREFILL):
        assert f"`{name}`" in text
