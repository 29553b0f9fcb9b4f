"""Short sums and logits over memory of one process, as if it were that of two GPUs."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _symmetric_memory as symmetric_memory

from openai_bls.engines.embedded.gpu import vector_kernels
from openai_bls.engines.embedded.tensor_parallel import shared_memory
from openai_bls.engines.embedded.tensor_parallel.logits_gather import LogitsGather
from openai_bls.engines.embedded.tensor_parallel.short_sums import ROWS, ShortSums

WIDTH = 24
CPU = torch.device("cpu")

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the ranks share the memory of a CPU")


@pytest.fixture(autouse=True)
def one_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first of two allocates, the second has as well."""
    pairs: list[list[torch.Tensor]] = []

    def empty(*size: int, **kwargs: Any) -> torch.Tensor:
        if not pairs or not pairs[-1]:
            pairs.append([torch.empty(*size, **kwargs) for _ in range(2)])
            everywhere.append([memory.data_ptr() for memory in pairs[-1]])
        return pairs[-1].pop(0)

    everywhere: list[list[int]] = []
    monkeypatch.setattr(symmetric_memory, "empty", empty)
    monkeypatch.setattr(symmetric_memory, "rendezvous", lambda *_: SimpleNamespace(buffer_ptrs=everywhere[-1]))
    monkeypatch.setattr(dist, "group", SimpleNamespace(WORLD=SimpleNamespace(group_name="")))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    torch.manual_seed(0)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float16)


def fused_linear(size: int) -> torch.nn.Linear:
    """Linear layer that has the kernel for one row."""
    layer = torch.nn.Linear(size, WIDTH, bias=False, dtype=torch.float16)
    layer.forward = functools.partial(vector_kernels.linear, weight=layer.weight.detach(), bias=None)
    return layer.requires_grad_(requires_grad=False)


@pytest.mark.parametrize("as_it_came", [True, False])
def test_a_row_is_pushed_once_or_twice_and_summed_once(as_it_came: bool) -> None:
    """It is pushed again if what is to be summed is another tensor, with the same numbers."""
    ranks = [ShortSums(rank, 2, WIDTH, CPU) for rank in range(2)]
    layers, inputs = [fused_linear(40), fused_linear(40)], [normal(1, 1, 40), normal(1, 1, 40)]
    residual, weight = normal(1, 1, WIDTH), normal(WIDTH)
    for _ in range(3):
        parts = [one.part(layer, x) for one, layer, x in zip(ranks, layers, inputs, strict=True)]
        wanted = residual + (parts[0] + parts[1])
        for one, part in zip(ranks, parts, strict=True):
            found, normed = one.add_norm(part if as_it_came else part.clone(), residual, weight, 1e-6)
            torch.testing.assert_close(found, wanted)
            rooted = torch.nn.functional.rms_norm(wanted, [WIDTH], weight, 1e-6)
            torch.testing.assert_close(normed, rooted, rtol=0.01, atol=1e-3)


def test_what_is_not_pushed_by_its_product() -> None:
    alone = ShortSums(0, 2, WIDTH, CPU)
    layer = fused_linear(40)
    alone.part(layer, normal(1, 2, 40))
    assert alone._pushed is None, "two rows"
    alone.part(torch.nn.Linear(40, WIDTH, dtype=torch.float16), normal(1, 1, 40))
    assert alone._pushed is None, "no kernel for one row"
    layer.forward = functools.partial(torch.nn.Linear.forward, layer)  # as a layer with adapters has it
    alone.part(layer, normal(1, 1, 40))
    assert alone._pushed is None, "adapters"
    assert alone.takes(torch.empty(ROWS, WIDTH, dtype=torch.bfloat16))
    assert not alone.takes(torch.empty(ROWS + 1, WIDTH, dtype=torch.bfloat16))
    assert not alone.takes(torch.empty(1, WIDTH))
    assert not alone.takes(torch.empty(1, 2 * WIDTH, dtype=torch.bfloat16))


def test_logits_come_together_on_rank_0() -> None:
    first, second = (LogitsGather(rank, 2, 40, torch.zeros(1, dtype=torch.int32), CPU) for rank in range(2))
    for rows in (1, 3, 2):
        parts = normal(1, rows, 40), normal(1, rows, 40)
        assert second.gather(parts[1]) is parts[1]
        assert torch.equal(first.gather(parts[0]), torch.cat(parts, -1))


def test_memory_is_shared_with_ranks_of_one_model_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """In its process; a second model sums by NCCL, and so does one whose other rank has served a model before."""
    said_by_the_other = 1.0
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, _: tensor.clamp_(max=said_by_the_other))
    monkeypatch.setattr(shared_memory, "_is_faster", lambda *_: True)
    monkeypatch.setattr(shared_memory, "_has_met", False)
    sums, gather = shared_memory.kernels(0, 2, WIDTH, 40, CPU)
    assert isinstance(sums, ShortSums)
    assert isinstance(gather, LogitsGather)
    assert shared_memory.kernels(0, 2, WIDTH, 40, CPU) == (None, None)
    monkeypatch.setattr(shared_memory, "_has_met", False)
    said_by_the_other = 0.0
    assert shared_memory.kernels(0, 2, WIDTH, 40, CPU) == (None, None)
