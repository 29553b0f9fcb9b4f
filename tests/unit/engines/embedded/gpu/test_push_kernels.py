"""The kernel of short sums, by ranks that take turns at pushing and at summing, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from openai_bls.engines.embedded.gpu import push_kernels, vector_kernels

WIDTH = 24
MOST_ROWS = 4

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the ranks share the memory of a CPU")


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float16)


class Ranks:
    def __init__(self, size: int) -> None:
        self.stop = torch.zeros(1, dtype=torch.int32)
        self.memories = [torch.zeros(2, size, MOST_ROWS, WIDTH, dtype=torch.int32) for _ in range(size)]
        addresses = tuple(memory.data_ptr() for memory in self.memories)
        self.exchanges = [
            push_kernels.Exchange(rank, addresses, self.stop, torch.zeros(MOST_ROWS, dtype=torch.int32))
            for rank in range(size)
        ]

    def sum(self, parts: list[torch.Tensor], *norm: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """What each rank finds. First all push, and are told to stop waiting; then they do it again and sum."""
        before = [exchange.turns.clone() for exchange in self.exchanges]
        for stop in (1, 0):
            self.stop.fill_(stop)
            found = []
            for exchange, part, turns in zip(self.exchanges, parts, before, strict=True):
                exchange.turns.copy_(turns)
                with_norm = (norm[0], norm[1], 1e-6) if norm else None
                found.append(push_kernels.sum_rows(part, exchange, with_norm))
        return found


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push_kernels, "_LOOKS", 1)
    torch.manual_seed(0)


@pytest.mark.parametrize("size", [2, 3])
def test_sums_are_the_same_on_all_ranks(size: int) -> None:
    """Steps of different sizes one after another, so that rows have had different numbers of turns."""
    ranks = Ranks(size)
    for rows in (3, 1, 1, 4, 2):
        parts = [normal(1, rows, WIDTH) for _ in range(size)]
        wanted = torch.stack(parts).float().sum(0).half()
        for found, _ in ranks.sum(parts):
            assert torch.equal(found, wanted)
    assert ranks.exchanges[0].turns.tolist() == [5, 3, 2, 1]


def test_what_a_product_has_pushed() -> None:
    """Each rank multiplies and pushes first, then sums what has come."""
    ranks, size = Ranks(2), 40
    for _ in range(2):
        inputs, weights = [normal(1, size) for _ in range(2)], [normal(WIDTH, size) for _ in range(2)]
        parts = [
            vector_kernels.linear(x, weight, None, exchange=exchange)
            for x, weight, exchange in zip(inputs, weights, ranks.exchanges, strict=True)
        ]
        wanted = parts[0] + parts[1]
        for part, exchange in zip(parts, ranks.exchanges, strict=True):
            assert torch.equal(push_kernels.sum_rows(part, exchange, pushed=True)[0], wanted)


def test_residual_and_norm() -> None:
    parts, residual, weight = [normal(3, WIDTH), normal(3, WIDTH)], normal(3, WIDTH), normal(WIDTH)
    total = (parts[0].float() + parts[1].float()).half() + residual
    scaled = total.float() * torch.rsqrt(total.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    for found, normed in Ranks(2).sum(parts, residual, weight):
        assert torch.equal(found, total)
        torch.testing.assert_close(normed, weight * scaled.half())
