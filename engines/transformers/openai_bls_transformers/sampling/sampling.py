"""Sampling of the next token of every sequence of a batch, in one pass.

Each row carries its own parameters in tensors and one random number that the host derives from (seed, position). So a
row's token depends on nothing else in the batch, and no state is kept between steps. The number samples by the inverse
of the cumulative distribution: a step needs no noise of the size of the vocabulary.

Every filter keeps the tokens at or above a threshold of probability; tokens that tie with the last one kept are kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

# Tokens looked at first when only the likeliest can matter; a sort of a whole vocabulary costs far more.
_FIRST_CANDIDATES = 64
MOST_CANDIDATES = 1024
"""Tokens; up to here the likeliest are cheaper to list than a threshold is to find by bisection."""
_ONE_AS_BITS = 0x3F800000  # float32 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Filters that a step needs, known before it runs. All true is always right, only slower."""

    sampled: bool
    """Some row is not greedy."""
    top_k: int
    """The largest top_k of the rows; 0 if none has one."""
    top_p: bool
    """Some row has a top_p below 1."""
    min_p: bool
    """Some row has a min_p."""
    bounded: bool = False
    """Every row that is not greedy has a top_k."""
    static: bool = False
    """Run the same operations for all values, so that the host need not wait for them; thresholds by bisection."""


def choose(
    scores: torch.Tensor,
    temperature: torch.Tensor,
    top_p: torch.Tensor,
    top_k: torch.Tensor,
    min_p: torch.Tensor,
    bits: torch.Tensor,
    plan: Plan,
) -> torch.Tensor:
    """The next token of each row, int64 of shape [n, 1].

    Args:
        scores: logits, float32 of shape [n, vocabulary].
        temperature: float32 [n]; 0 makes the row greedy.
        top_p: float32 [n]; 1 is off.
        top_k: int32 [n]; 0 is off.
        min_p: float32 [n]; 0 is off.
        bits: int32 [n], of `random_bits`.
        plan: plan that covers what all rows need.
    """
    best, greedy = scores.max(dim=-1, keepdim=True)
    if not plan.sampled:
        return greedy
    heat = temperature.unsqueeze(-1)
    is_greedy = heat <= 0
    # The maximum goes first: a tiny temperature then makes zeros and minus infinities, never NaN.
    probs = torch.softmax((scores - best) / torch.where(is_greedy, 1.0, heat), dim=-1)
    threshold = _threshold(probs, top_p.unsqueeze(-1), top_k.unsqueeze(-1), plan)
    if plan.min_p:
        floor = min_p.unsqueeze(-1) * probs.amax(dim=-1, keepdim=True)
        threshold = floor if threshold is None else torch.maximum(threshold, floor)
    if threshold is not None:
        probs = torch.where(probs >= threshold, probs, 0.0)
    cumulative = probs.cumsum(dim=-1, dtype=torch.float64)
    # In (0, 1) at float64, so that a target is always below the total and the token found has a probability.
    uniform = (bits.to(torch.float64).remainder(2.0**32) + 0.5) * 2.0**-32
    target = uniform.unsqueeze(-1) * cumulative[:, -1:]
    sampled = torch.searchsorted(cumulative, target, right=True).clamp_(max=scores.size(-1) - 1)
    return torch.where(is_greedy, greedy, sampled)


def _threshold(probs: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor, plan: Plan) -> torch.Tensor | None:
    """The least probability that top_k and then top_p leave in each row, [n, 1]; None if no row has either."""
    if not plan.top_k and not plan.top_p:
        return None
    if plan.static:
        return _threshold_by_bisection(probs, top_p, top_k)
    vocab_size = probs.size(-1)
    count = min(vocab_size, max(plan.top_k, _FIRST_CANDIDATES if plan.top_p else 1))
    while True:
        highest = probs.topk(count, dim=-1).values
        by_k = highest.gather(-1, (top_k.long() - 1).clamp(0, count - 1))
        by_k = torch.where(top_k > 0, by_k, 0.0)
        if not plan.top_p:
            return by_k
        kept = torch.where(probs >= by_k, probs, 0.0).sum(dim=-1, keepdim=True)
        cumulative = highest.cumsum(dim=-1)
        reached = cumulative >= top_p * kept
        # The last candidate stands for "not reached": right if all of the vocabulary is there, else more are needed.
        found = reached[:, -1:] | (top_p >= 1)
        if count == vocab_size or plan.bounded or bool(found.all()):
            last = reached.to(torch.int8).argmax(dim=-1, keepdim=True)
            last = torch.where(reached[:, -1:], last, count - 1)
            by_p = torch.where(top_p < 1, highest.gather(-1, last), 0.0)
            return torch.maximum(by_k, by_p)
        count = min(vocab_size, count * 8)


def _threshold_by_bisection(probs: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """`_threshold` without a sort and without a look at the values from the host.

    Positive floats order like their bit patterns, so 31 halvings find the exact threshold.
    """
    bits = probs.view(torch.int32)
    wanted = torch.where(top_k > 0, top_k, probs.size(-1))
    by_k = _highest(bits, lambda at: (bits >= at).sum(dim=-1, keepdim=True) >= wanted)
    kept = torch.where(bits >= by_k, probs, 0.0)
    mass = torch.where(top_p < 1, top_p, 0.0) * kept.sum(dim=-1, keepdim=True)
    by_p = _highest(bits, lambda at: torch.where(bits >= at, kept, 0.0).sum(dim=-1, keepdim=True) >= mass)
    by_p = torch.where(top_p < 1, by_p, 0)
    return torch.maximum(by_k, by_p).view(torch.float32)


def _highest(bits: torch.Tensor, holds: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """The highest bit pattern [n, 1] at which `holds`, which holds at 0 and stops holding once."""
    low = torch.zeros_like(bits[:, :1])
    high = torch.full_like(low, _ONE_AS_BITS + 1)
    for _ in range(31):
        middle = (low + high) // 2
        true = holds(middle)
        low, high = torch.where(true, middle, low), torch.where(true, high, middle)
    return low
