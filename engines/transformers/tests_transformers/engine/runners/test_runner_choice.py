"""Runner and attention of a model, by its class and its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from openai_bls.core.manifest import EngineLoadError
from openai_bls_transformers.options import EngineOptions
from openai_bls_transformers.runners.runner_choice import RunnerChoice, candidates

LONGROPE = {
    "original_max_position_embeddings": 32,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 48,
        "long_factor": [2.0] * 48,
        "original_max_position_embeddings": 32,
    },
}


def choices(
    model_type: str, changes: Mapping[str, Any] | None = None, *, gpu: bool = False, flash: bool = False, **options: Any
) -> list[RunnerChoice]:
    config = CONFIG_MAPPING[model_type](**(changes or {}))
    model_class = AutoModelForCausalLM._model_mapping[type(config)]
    return candidates(model_class, config, 64, EngineOptions(**options), on_gpu=gpu, flash_installed=flash)


def names(found: list[RunnerChoice]) -> list[str]:
    """Of the choices up to the first of the second runner."""
    return [f"{choice.runner} {choice.attention}" for choice in found if choice.shared_steps]


@pytest.mark.parametrize(
    ("model_type", "gpu", "flash", "attentions"),
    [
        ("qwen2", False, False, ["sdpa"]),
        ("qwen2", False, True, ["sdpa"]),
        ("qwen2", True, False, ["paged", "varlen", "sdpa"]),
        ("qwen2", True, True, ["paged", "flash_attention_2"]),
        ("gemma2", False, False, ["eager"]),
        ("gemma2", True, True, ["paged", "eager"]),
        ("gpt_oss", False, False, ["eager"]),
        ("gpt_oss", True, False, ["paged", "eager"]),
    ],
)
def test_continuous_batching_comes_first(model_type: str, gpu: bool, flash: bool, attentions: list[str]) -> None:
    found = choices(model_type, gpu=gpu, flash=flash)
    last = "dynamic_cache eager" if model_type == "gemma2" else "dynamic_cache auto"
    assert names(found) == [*(f"continuous_batching {attention}" for attention in attentions), last]
    assert (found[-1].runner, found[-1].shared_steps) == ("dynamic_cache", False)


@pytest.mark.parametrize(
    ("model_type", "changes", "reason"),
    [
        ("mamba2", {}, "state that is no KV cache"),
        ("qwen3_next", {}, "state that is no KV cache"),
        ("bloom", {}, "its own code"),
        ("falcon", {}, "its own code"),
        ("lfm2", {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}, "layers of type conv"),
        ("llama4_text", {}, "layers of type chunked_attention"),
        ("deepseek_v3", {}, "latent attention"),
        ("gemma3n_text", {}, "share their cache"),
        ("gemma4_text", {}, "differ in size"),
        ("mimo_v2_flash", {}, "differ in size"),
        ("phi3", LONGROPE, "beyond 32 tokens"),
        ("diffllama", {}, "more than once"),
    ],
)
def test_what_continuous_batching_cannot_run(model_type: str, changes: dict[str, Any], reason: str) -> None:
    if not hasattr(transformers.models, model_type.removesuffix("_text")):
        pytest.skip(f"this transformers has no {model_type}")
    found = choices(model_type, changes)
    assert names(found) == ["dynamic_cache auto"]
    assert reason in found[0].reason
    with pytest.raises(EngineLoadError, match=r"runner continuous_batching .*dynamic_cache"):
        choices(model_type, changes, runner="continuous_batching")
    with pytest.raises(EngineLoadError, match=r"attention paged .*continuous_batching"):
        choices(model_type, changes, gpu=True, attention="paged")


def test_a_length_at_which_the_rotary_embedding_is_plain() -> None:
    assert names(choices("phi3", LONGROPE | {"original_max_position_embeddings": 64}))[0] == "continuous_batching sdpa"


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"runner": "dynamic_cache"}, ["dynamic_cache auto"]),
        ({"runner": "dynamic_cache", "attention": "eager"}, ["dynamic_cache eager"]),
        ({"runner": "continuous_batching"}, ["continuous_batching sdpa"]),
        ({"attention": "eager"}, ["continuous_batching eager", "dynamic_cache eager"]),
        ({"attention": "varlen"}, ["continuous_batching varlen"]),
    ],
)
def test_options_leave_out_all_others(options: dict[str, Any], wanted: list[str]) -> None:
    assert names(choices("qwen2", **options)) == wanted


def test_a_cache_in_fp8_has_paged_attention_alone() -> None:
    found = choices("qwen2", gpu=True, flash=True, kv_cache_dtype="fp8")
    assert [(choice.attention, choice.kv_cache_dtype) for choice in found] == [("paged", "fp8")]
    assert "attention paged and a KV cache in fp8" in str(found[0])
    for model_type, gpu, attention, why in (
        ("qwen2", False, "auto", "there is none"),
        ("qwen2", True, "sdpa", "attention sdpa: asked for"),
        ("gemma2", False, "auto", "there is none"),
        ("mamba", True, "auto", "it keeps a state"),
    ):
        with pytest.raises(EngineLoadError, match=f"attention paged .*{why}"):
            choices(model_type, gpu=gpu, kv_cache_dtype="fp8", attention=attention)


def test_attention_of_the_other_runner() -> None:
    with pytest.raises(EngineLoadError, match="runner dynamic_cache"):
        choices("qwen2", gpu=True, runner="dynamic_cache", attention="paged")


@pytest.mark.parametrize("attention", ["sdpa", "varlen"])
def test_attentions_that_cannot_cap_scores(attention: str) -> None:
    with pytest.raises(EngineLoadError, match=f"attention {attention} .*Gemma2.*eager"):
        choices("gemma2", gpu=True, attention=attention)
