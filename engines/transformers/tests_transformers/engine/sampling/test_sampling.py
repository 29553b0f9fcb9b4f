"""The sampler against plain definitions of what it does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from openai_bls.engines.random_bits import random_bits
from openai_bls_transformers.sampling.sampling import Plan, choose

DRAWS = 40_000
EVERYTHING = Plan(sampled=True, top_k=1000, top_p=True, min_p=True)
STATIC = Plan(sampled=True, top_k=1, top_p=True, min_p=True, static=True)


def draw(
    scores: torch.Tensor,
    *,
    plan: Plan,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    draws: int = DRAWS,
) -> torch.Tensor:
    """Draw many times from one row of scores; int64 [draws]."""
    bits = random_bits(np.full(draws, 7, np.uint64), np.arange(draws, dtype=np.uint64))
    return choose(
        scores.expand(draws, -1),
        torch.full((draws,), temperature),
        torch.full((draws,), top_p),
        torch.full((draws,), top_k, dtype=torch.int32),
        torch.full((draws,), min_p),
        torch.from_numpy(bits),
        plan,
    ).squeeze(-1)


def reference(scores: torch.Tensor, temperature: float, top_p: float, top_k: int, min_p: float) -> torch.Tensor:
    """The distribution by sorting; float64 [vocabulary]."""
    probs = (scores.double() / temperature).softmax(-1)
    order = probs.argsort(descending=True)
    if top_k:
        probs[order[top_k:]] = 0
        probs /= probs.sum()
    if top_p < 1:
        before = probs[order].cumsum(0) - probs[order]
        probs[order[before >= top_p]] = 0
        probs /= probs.sum()
    probs[probs < min_p * probs.max()] = 0
    return probs / probs.sum()


@pytest.mark.parametrize("plan", [EVERYTHING, STATIC], ids=["sorting", "bisection"])
@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k", "min_p"),
    [
        (1.0, 1.0, 0, 0.0),
        (0.5, 1.0, 0, 0.0),
        (2.0, 0.9, 0, 0.0),
        (1.0, 0.5, 0, 0.0),
        (1.0, 1.0, 5, 0.0),
        (1.0, 0.7, 12, 0.0),
        (1.0, 1.0, 0, 0.2),
        (1.3, 0.95, 40, 0.05),
        (1.0, 0.9, 1000, 0.0),
    ],
)
def test_distribution(plan: Plan, temperature: float, top_p: float, top_k: int, min_p: float) -> None:
    torch.manual_seed(1)
    scores = torch.randn(1, 100) * 1.5
    wanted = reference(scores[0], temperature, top_p, top_k, min_p)
    drawn = draw(scores, plan=plan, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    counts = torch.bincount(drawn, minlength=100).double()
    assert counts[wanted == 0].sum() == 0
    # Pearson's statistic over the tokens with enough expected draws; its mean is their number, its variance twice it.
    often = wanted * DRAWS >= 5
    expected = wanted[often] * DRAWS
    statistic = float(((counts[often] - expected) ** 2 / expected).sum())
    freedom = int(often.sum())
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5 + 5


def test_wide_nucleus_over_a_large_vocabulary() -> None:
    """The first candidates do not reach top_p; more have to be looked at."""
    torch.manual_seed(2)
    scores = torch.randn(1, 5000) * 0.1
    wanted = reference(scores[0], 1.0, 0.9, 0, 0.0)
    drawn = draw(scores, plan=Plan(sampled=True, top_k=0, top_p=True, min_p=False), top_p=0.9, draws=2500)
    assert bool((wanted[drawn] > 0).all())
    assert drawn.unique().numel() > 1500


def test_rows_are_independent() -> None:
    """A row's choice is the same whatever else is in the batch."""
    torch.manual_seed(3)
    count = 64
    scores = torch.randn(count, 300)
    temperature = torch.tensor([0.0, 0.7, 1.0, 1.5] * 16)
    top_p = torch.tensor([1.0, 0.9] * 32)
    top_k = torch.tensor([0, 0, 7, 50] * 16, dtype=torch.int32)
    min_p = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.05, 0.05, 0.05, 0.05] * 8)
    bits = torch.from_numpy(random_bits(np.arange(count, dtype=np.uint64), np.full(count, 9, np.uint64)))
    together = choose(scores, temperature, top_p, top_k, min_p, bits, EVERYTHING)
    static = choose(scores, temperature, top_p, top_k, min_p, bits, STATIC)
    assert torch.equal(together, static)
    for i in range(count):
        row = slice(i, i + 1)
        plan = Plan(
            sampled=bool(temperature[i] > 0),
            top_k=int(top_k[i]),
            top_p=bool(top_p[i] < 1),
            min_p=bool(min_p[i] > 0),
        )
        alone = choose(scores[row], temperature[row], top_p[row], top_k[row], min_p[row], bits[row], plan)
        assert int(alone) == int(together[i])


@pytest.mark.parametrize("plan", [EVERYTHING, STATIC], ids=["sorting", "bisection"])
def test_greedy_rows(plan: Plan) -> None:
    torch.manual_seed(4)
    scores = torch.randn(1, 300)
    assert set(draw(scores, plan=plan, temperature=0.0, draws=50).tolist()) == {int(scores.argmax())}
    assert set(draw(scores, plan=plan, temperature=1e-30, draws=50).tolist()) == {int(scores.argmax())}


@pytest.mark.parametrize("plan", [EVERYTHING, STATIC], ids=["sorting", "bisection"])
def test_forbidden_tokens_are_never_drawn(plan: Plan) -> None:
    scores = torch.zeros(1, 50)
    scores[0, ::2] = -torch.inf
    drawn = draw(scores, plan=plan, temperature=5.0, draws=5000)
    assert bool((drawn % 2 == 1).all())
    assert drawn.unique().numel() == 25


def test_random_bits_depend_on_seed_and_position() -> None:
    positions = np.arange(20_000, dtype=np.uint64)
    streams = [random_bits(np.full(20_000, seed, np.uint64), positions) for seed in (0, 1, 2, 2**64 - 1)]
    uniform = [(s.view(np.uint32).astype(np.float64) + 0.5) / 2**32 for s in streams]
    for u in uniform:
        assert abs(u.mean() - 0.5) < 0.015
        assert abs(u.var() - 1 / 12) < 0.005
        assert abs(float(np.corrcoef(u[:-1], u[1:])[0, 1])) < 0.04
    for i, u in enumerate(uniform):
        for v in uniform[i + 1 :]:
            assert abs(float(np.corrcoef(u, v)[0, 1])) < 0.04
