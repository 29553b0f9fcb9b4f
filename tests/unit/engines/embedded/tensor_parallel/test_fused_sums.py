"""Sums over the ranks behind decoder layers whose residual adds are fused."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from openai_bls.engines.embedded.gpu import fused_layers
from openai_bls.engines.embedded.tensor_parallel import fused_sums
from openai_bls.engines.embedded.tensor_parallel.collectives import Collectives
from openai_bls.engines.embedded.tensor_parallel.shards import SummedLinear
from tests.unit.engines.embedded.gpu.test_fused_layers import kernels, logits, model

__all__ = ["kernels", "model"]


class Doubles:
    """Collectives of two ranks that have the same."""

    def __init__(self, norms: Any) -> None:
        self._norms = norms
        self.summed = 0
        self.added = 0

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        self.summed += 1
        return 2 * x

    def part(self, linear: torch.nn.Module, x: torch.Tensor) -> Any:
        return linear(x)

    def add_norm(self, x: torch.Tensor, *more: Any) -> Any:
        self.added += 1
        return self._norms.add_rms_norm(2 * x, *more)


@pytest.fixture
def group(model: Any, kernels: Any) -> Doubles:
    """Of the model's layers that are split by their inputs."""
    group = Doubles(kernels)
    for layer in model.model.layers:
        for module, name in ((layer.self_attn, "o_proj"), (layer.mlp, "down_proj")):
            setattr(module, name, SummedLinear(getattr(module, name), cast("Collectives", group)))
    return group


def test_every_sum_comes_with_its_add(model: Any, group: Doubles) -> None:
    before = logits(model)
    assert group.summed == 4
    for _ in range(2):  # as for each attention that is tried
        fused_layers.fuse(model)
        assert fused_sums.fuse(model) == 4
    group.summed = group.added = 0
    torch.testing.assert_close(logits(model), before, rtol=1e-4, atol=1e-4)
    assert (group.summed, group.added) == (0, 4)


def test_layers_that_add_for_themselves_sum_for_themselves(model: Any, group: Doubles, kernels: Any) -> None:
    kernels.add_rms_norm = lambda x, residual, weight, epsilon: (x, x)
    before = logits(model)
    assert fused_layers.fuse(model)["adds"] == 0
    assert fused_sums.fuse(model) == 0
    group.summed = 0
    torch.testing.assert_close(logits(model), before, rtol=1e-4, atol=1e-4)
    assert group.summed == 4
