"""The build names vLLM for models that it was measured to run faster on a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from openai_bls_transformers.recipe.advice import vllm_advice
from openai_bls_transformers.record import SelfTestRecord

_GPU = "NVIDIA H100 80GB HBM3 (9.0)"


def _record(**changes: Any) -> SelfTestRecord:
    fields = {
        "device": _GPU,
        "dtype": "bfloat16",
        "versions": {},
        "runner": "continuous_batching",
        "attention": "paged",
    }
    return SelfTestRecord(**{**fields, **changes})


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        ({"num_experts": 128}, {"plain_experts": True}),
        ({"num_local_experts": 32}, {"plain_experts": True}),
        ({"n_routed_experts": 64}, {"plain_experts": True}),
        ({}, {"attention": "sdpa"}),
    ],
)
def test_slower_on_a_gpu(config: dict[str, Any], changes: dict[str, Any]) -> None:
    assert "--engine vllm" in (vllm_advice(config, _record(**changes)) or "")


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        ({}, {}),
        ({"num_experts": 128}, {}),  # by fused kernels
        ({"num_experts": None, "num_local_experts": 1}, {"plain_experts": True}),
        ({"num_experts": 128}, {"device": "cpu", "attention": "sdpa", "plain_experts": True}),
        ({}, {"runner": "dynamic_cache", "attention": "auto"}),
        ({}, {"attention": "flash_attention_2"}),
    ],
)
def test_fast_or_not_measured(config: dict[str, Any], changes: dict[str, Any]) -> None:
    assert vllm_advice(config, _record(**changes)) is None
