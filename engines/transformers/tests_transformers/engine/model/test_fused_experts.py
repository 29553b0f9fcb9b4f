"""Experts and routers of transformers' classes by the kernels, which run in Triton's interpreter without a GPU."""

from __future__ import annotations

import importlib
import logging
from typing import Any

import pytest
import torch
import transformers

from openai_bls_transformers.gpu import expert_kernels
from openai_bls_transformers.model.fused_experts import fuse_experts, fuse_router, has_plain

SIZES = {"hidden_size": 32, "intermediate_size": 16, "moe_intermediate_size": 16, "num_experts_per_tok": 2}
EXPERTS = {
    "num_experts": 6,
    "num_local_experts": 6,
    "n_routed_experts": 6,
    "n_group": 1,
    "topk_group": 1,
    "moe_num_experts": 6,
}
MODULES = {
    "Qwen2Moe": "qwen2_moe",
    "Qwen3Moe": "qwen3_moe",
    "Mixtral": "mixtral",
    "Olmoe": "olmoe",
    "GptOss": "gpt_oss",
    "Glm4Moe": "glm4_moe",
    "Aria": "aria",
    "DeepseekV4": "deepseek_v4",
}
CONFIGS = {"Aria": "AriaTextConfig"}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def made(name: str, part: str, **more: Any) -> Any:
    """A module of transformers with random weights, in float16: the interpreter multiplies bfloat16 wrongly."""
    config = getattr(transformers, CONFIGS.get(name, f"{name}Config"))(**{**SIZES, **EXPERTS, **more})
    config._experts_implementation = "grouped_mm"
    code = importlib.import_module(f"transformers.models.{MODULES[name]}.modeling_{MODULES[name]}")
    found = getattr(code, f"{name}{part}")(config)
    torch.manual_seed(0)
    for weight in found.parameters():
        torch.nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
    return found.to(DEVICE, torch.float16).eval().requires_grad_(False)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float16, device=DEVICE)


@pytest.fixture
def few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the trials with many tokens, which take the interpreter seconds, to the tests of what is fused by them."""
    monkeypatch.setattr(expert_kernels, "sizes", lambda top, experts: (2, 1))


def test_a_trial_has_every_program(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, mix = set(), expert_kernels.mix

    def counted(x: torch.Tensor, *more: Any) -> torch.Tensor:
        tried.add(len(x))
        return mix(x, *more)

    monkeypatch.setattr(expert_kernels, "mix", counted)
    assert fuse_experts(made("Qwen3Moe", "Experts")) == 1
    assert tried == set(expert_kernels.sizes(2, EXPERTS["num_experts"]))


@pytest.mark.usefixtures("few_sizes")
@pytest.mark.parametrize("name", ["Qwen2Moe", "Qwen3Moe", "Mixtral", "Olmoe", "GptOss", "Aria"])
def test_experts_and_routers_that_are_fused(name: str) -> None:
    experts, router = made(name, "Experts"), made(name, "TextTopKRouter" if name == "Aria" else "TopKRouter")
    assert has_plain(experts)
    assert fuse_experts(experts) == 1
    assert not has_plain(experts)
    assert fuse_router(router) == 1
    x = normal(5, 32)
    logits, scores, chosen = type(router).forward(router, x)
    found = router.forward(x)
    torch.testing.assert_close(found[0], logits, rtol=0.01, atol=0.01)
    torch.testing.assert_close(found[1], scores, rtol=0.01, atol=0.01)
    assert found[1].dtype == scores.dtype
    assert torch.equal(found[2], chosen)
    wanted = type(experts).forward(experts, x, chosen, scores)
    torch.testing.assert_close(experts.forward(x, *found[:0:-1]), wanted.half(), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("normalized", [True, False])
def test_a_router_keeps_its_kind_of_scores(normalized: bool) -> None:
    router = made("Qwen3Moe", "TopKRouter", norm_topk_prob=normalized)
    assert fuse_router(router) == 1
    total = router.forward(normal(20, 32))[1].float().sum(-1)
    assert bool((total > 0.99).all()) is normalized


@pytest.mark.usefixtures("few_sizes")
@pytest.mark.parametrize("name", ["Qwen3Moe", "GptOss"])
def test_what_a_kernel_does_not_take_goes_to_the_original(name: str) -> None:
    """Whose weights mean the same, though gpt-oss's lie in another order then."""
    experts = made(name, "Experts")
    x, chosen, scores = normal(3, 32), torch.tensor([[0, 1], [5, 2], [3, 1]], device=DEVICE), normal(2, 3).T
    wanted = experts.forward(x, chosen, scores)
    assert fuse_experts(experts) == 1
    torch.testing.assert_close(experts.forward(x, chosen, scores), wanted, rtol=1e-3, atol=1e-3)


def test_a_gate_beyond_its_limit_is_tried_too(monkeypatch: pytest.MonkeyPatch) -> None:
    experts = made("GptOss", "Experts")
    without = expert_kernels.Clamp(experts.alpha, 1e9)
    mix = expert_kernels.mix
    monkeypatch.setattr(expert_kernels, "mix", lambda x, all_, *more: mix(x, all_._replace(clamp=without), *more))
    assert fuse_experts(experts) == 0


@pytest.mark.parametrize(
    ("name", "part", "more"),
    [
        ("Qwen3Moe", "Experts", {"hidden_act": "gelu"}),
        ("DeepseekV4", "Experts", {}),  # a limit before SiLU
        ("Qwen3Moe", "Experts", {"moe_intermediate_size": 24}),  # loads that are not aligned
        ("Qwen3Moe", "MLP", {}),
        ("Glm4Moe", "TopkRouter", {}),  # scores by a sigmoid
    ],
)
def test_what_is_not_fused(name: str, part: str, more: dict[str, Any]) -> None:
    module = made(name, part, **more)
    assert fuse_experts(module) + fuse_router(module) == 0
    assert "forward" not in module.__dict__


def test_what_comes_out_different_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    experts, router = made("Qwen3Moe", "Experts"), made("Qwen3Moe", "TopKRouter")
    mix, choose = expert_kernels.mix, expert_kernels.choose

    def wrong_for_many(x: torch.Tensor, *arguments: Any) -> torch.Tensor:
        return mix(x, *arguments) * (1.1 if len(x) > expert_kernels.FEW_TOKENS else 1)

    def the_next(*arguments: Any, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
        scores, chosen = choose(*arguments, **named)
        return scores, (chosen + 1) % 6

    monkeypatch.setattr(expert_kernels, "mix", wrong_for_many)
    monkeypatch.setattr(expert_kernels, "choose", the_next)
    with caplog.at_level(logging.WARNING):
        assert fuse_experts(experts) + fuse_router(router) == 0
    assert caplog.messages == [
        f"{name} is left as it is: a trial came out different" for name in ("Qwen3MoeExperts", "Qwen3MoeTopKRouter")
    ]
    assert not {"forward"} & {*experts.__dict__, *router.__dict__}
