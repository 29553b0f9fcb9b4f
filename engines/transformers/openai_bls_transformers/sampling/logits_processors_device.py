"""Device half of the logits processors: changes to the logits of the rows that ask for them, and log-probabilities.

Only those rows are touched. Nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from openai_bls.engines.capabilities import MAX_LOGPROBS
from openai_bls_transformers.sampling.logits_processors import ANY, HostLogitsProcessors, LogitsUpdate


def to_device(values: Any, device: torch.device) -> torch.Tensor:
    """A NumPy array, copied in the order of the device's work and without waiting for it."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    if device.type != "cuda" or not tensor.numel():
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def apply(update: LogitsUpdate, last_ids: torch.Tensor, scores: torch.Tensor) -> None:
    """Change `scores`, float32 [rows, vocabulary], in place; `last_ids` [rows] are the sequences' last tokens."""
    constrained: tuple[torch.Tensor, torch.Tensor] | None = None
    if update.constrained:
        rows, masks = update.bitmasks(scores.size(1))
        if rows:
            words = to_device(masks, scores.device)
            constrained = to_device(np.array(rows, np.int64), scores.device), _unpacked(words, scores.size(1))
    # Only bans can leave nothing of what a grammar allows.
    raw = scores[constrained[0]] if constrained is not None and update.bans else None
    if update.bias:
        _add_bias(update, scores)
    if update.penalties:
        _penalize(update, last_ids, scores)
    if update.bans:
        _forbid(update, last_ids, scores)
    if constrained is None:
        return
    at, allowed = constrained
    masked = scores[at].masked_fill_(~allowed, -torch.inf)
    if raw is not None:
        # Then the grammar counts.
        dead = (masked == -torch.inf).all(dim=-1, keepdim=True)
        masked = torch.where(dead, raw.masked_fill_(~allowed, -torch.inf), masked)
    scores[at] = masked


def _spread(rows: Sequence[int], lengths: Sequence[int]) -> Any:
    return np.repeat(np.array(rows, np.int64), np.array(lengths, np.int64))


def _add_bias(update: LogitsUpdate, scores: torch.Tensor) -> None:
    rows, ids, values = zip(*update.bias, strict=True)
    places = np.stack([_spread(rows, [len(row) for row in ids]), np.concatenate(ids)])
    at = to_device(places, scores.device)
    scores[at[0], at[1]] += to_device(np.concatenate(values), scores.device)


def _penalize(update: LogitsUpdate, last_ids: torch.Tensor, scores: torch.Tensor) -> None:
    """Each row's known tokens, all different, and its last one, which may be one of them."""
    device = scores.device
    rows, kept, last_counts = zip(*update.penalties, strict=True)
    lengths = [len(penalties.ids) for penalties in kept]
    which = _spread(range(len(rows)), lengths)
    ints = to_device(np.stack([which, np.array(rows, np.int64)[which], np.concatenate([p.ids for p in kept])]), device)
    counts = to_device(np.concatenate([p.counts for p in kept]), device)
    row = to_device(np.array(rows, np.int64), device)
    factors = to_device(
        np.array(
            [[p.repetition for p in kept], [p.presence for p in kept], [p.frequency for p in kept], last_counts],
            np.float32,
        ),
        device,
    )
    last, last_count = last_ids[row].long(), factors[3]
    counts = counts + (ints[2] == last[ints[0]]) * last_count[ints[0]]
    known = _penalized(scores[ints[1], ints[2]], counts, factors[:, ints[0]])
    newest = _penalized(scores[row, last], last_count, factors)
    # In this order: the count of a known token includes its being the last one.
    scores[row, last] = newest
    scores[ints[1], ints[2]] = known


def _penalized(scores: torch.Tensor, counts: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    repetition, presence, frequency = factors[0], factors[1], factors[2]
    scores = torch.where(scores < 0, scores * repetition, scores / repetition)
    return scores - (counts > 0) * presence - counts * frequency


def _forbid(update: LogitsUpdate, last_ids: torch.Tensor, scores: torch.Tensor) -> None:
    rows, last, banned = to_device(np.array(update.bans, np.int64).T, scores.device)
    holds = (last == ANY) | (last_ids[rows] == last)
    scores.index_put_((rows, banned), torch.where(holds, -torch.inf, 0.0), accumulate=True)


def _unpacked(words: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Bool [n, vocabulary] from the bits of int32 [n, words]."""
    bits = (words.unsqueeze(-1) >> torch.arange(32, dtype=torch.int32, device=words.device)) & 1
    return bits.flatten(1)[:, :vocab_size].bool()


class StepLogprobs:
    """Log-probabilities of one step's tokens, copied to the host in the background."""

    def __init__(self, wanted: Sequence[tuple[int, int, HostLogitsProcessors]], logits: torch.Tensor) -> None:
        """Take what is needed of a step's logits [rows, vocabulary], before anything changes them."""
        self._wanted = wanted
        self._rows = to_device(np.array([row for row, _, _ in wanted], np.int64), logits.device)
        self._logits = logits[self._rows].float()
        self._total = self._logits.logsumexp(dim=-1, keepdim=True)
        # The same count for all, so that the order of equals does not depend on what others ask for.
        count = min(MAX_LOGPROBS, logits.size(-1)) if any(processors.logprobs for _, _, processors in wanted) else 0
        self._top = self._logits.topk(count, dim=-1)
        self._packed: torch.Tensor | None = None
        self._copied: torch.cuda.Event | None = None
        self._lists: list[list[float]] = []
        self._ids: list[list[int]] = []

    def finish(self, chosen: torch.Tensor) -> None:
        """Note the tokens that were chosen, [rows] of the step, and send all to the host and to the sequences."""
        own = self._logits.gather(-1, chosen[self._rows].long().unsqueeze(-1))
        values = torch.cat([own, self._top.values], dim=-1) - self._total
        packed = torch.cat([values.view(torch.int32), self._top.indices.to(torch.int32)], dim=-1)
        if packed.device.type == "cuda":
            self._packed = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
            self._packed.copy_(packed, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()
        else:
            self._packed = packed
        for i, (_, place, processors) in enumerate(self._wanted):
            processors.results[place] = (self, i)
        del self._logits, self._total, self._top, self._rows

    def row(self, index: int, count: int) -> tuple[float, list[int], list[float]]:
        """(the token's own, the `count` likeliest tokens, theirs) of one of the rows that were wanted."""
        if self._packed is not None:
            if self._copied is not None:
                self._copied.synchronize()
            top = (self._packed.size(1) - 1) // 2
            self._lists = self._packed[:, : 1 + top].contiguous().view(torch.float32).tolist()
            self._ids = self._packed[:, 1 + top :].tolist()
            self._packed = None
        values = self._lists[index]
        return values[0], self._ids[index][:count], values[1 : 1 + count]
