"""Kernels that start early, by Triton's interpreter: what the kernel before writes comes when they wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from openai_bls_transformers.gpu import (
    attention_kernels,
    attention_programs,
    dependent_launch,
    few_rows_kernels,
    fp8_kernels,
    fused_kernels,
    vector_kernels,
)

MODULES = (attention_programs, few_rows_kernels, fused_kernels, vector_kernels)
SIZE = 512
ON_GPU = torch.cuda.is_available()


def normal(*shape: int) -> torch.Tensor:
    torch.manual_seed(len(shape))
    return torch.randn(*shape, dtype=torch.float16)


WEIGHT, BIAS = normal(6, SIZE) / 16, normal(6)
NARROW = WEIGHT.to(torch.float8_e4m3fn), torch.ones(6)


def decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    """One new token after 299, in many shares that are joined."""
    pages, ends = torch.arange(20, dtype=torch.int32)[None], torch.tensor([0, 300], dtype=torch.int32)
    return attention_kernels.decode_attention(q, k, v, cache, cache.clone(), pages, ends, 16, 0.1, 40)


CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "product of a row": (lambda x: vector_kernels.linear(x, WEIGHT, BIAS), (normal(1, SIZE),)),
    "gates of a row": (lambda x: vector_kernels.gated_linear(x, WEIGHT, None), (normal(1, SIZE),)),
    "FP8 of a row": (lambda x: fp8_kernels.linear(x, *NARROW, BIAS), (normal(1, SIZE),)),
    "product of rows": (lambda x: few_rows_kernels.linear(x, WEIGHT, BIAS), (normal(3, SIZE),)),
    "gates of rows": (lambda x: few_rows_kernels.gated_linear(x, WEIGHT, None), (normal(3, SIZE),)),
    "FP8 of rows": (lambda x: fp8_kernels.linear(x, *NARROW, BIAS), (normal(3, SIZE),)),
    "norm": (lambda x: fused_kernels.rms_norm(x, WEIGHT[0], 1e-6), (normal(3, SIZE),)),
    "norm of a sum": (
        lambda x, y: fused_kernels.add_rms_norm(x, y, WEIGHT[0], 1e-6),
        (normal(3, SIZE), normal(3, SIZE)),
    ),
    "gates": (fused_kernels.silu_mul, (normal(3, SIZE),)),
    "attention": (decode, (normal(1, 4, 64), normal(1, 2, 64), normal(1, 2, 64), normal(320, 2, 64))),
}


@pytest.mark.skipif(ON_GPU, reason="on a GPU nothing can be put between two instructions")
@pytest.mark.parametrize("name", CASES)
def test_what_others_write_is_read_after_the_wait(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, inputs = CASES[name]
    wanted = call(*(x.clone() for x in inputs))
    begun: list[bool] = []

    def start_next() -> None:
        begun.append(True)
        for x in given:
            x.fill_(torch.nan)

    def wait() -> None:
        for x, right in zip(given, inputs, strict=True):
            x.copy_(right)

    given = [x.clone() for x in inputs]
    monkeypatch.setattr(dependent_launch, "options", lambda device, early=True: {"DEPENDENT": True})
    for module in MODULES:
        monkeypatch.setattr(module, "start_next", start_next)
        monkeypatch.setattr(module, "wait", wait)
    found = call(*given)
    assert begun
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_kernels_start_early_from_hopper_on(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda", 7)
    for capability, wanted in (((8, 9), {"DEPENDENT": False}), ((9, 0), {"DEPENDENT": True, "launch_pdl": True})):
        dependent_launch.options.cache_clear()
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        assert dependent_launch.options(device) == wanted
    assert dependent_launch.options(device, early=False) == {"DEPENDENT": True}
    dependent_launch.options.cache_clear()
    assert dependent_launch.options(torch.device("cpu")) == {"DEPENDENT": False}
