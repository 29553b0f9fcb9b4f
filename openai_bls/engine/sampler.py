"""What stands where continuous batching expects its list of logits processors: every row's parameters, every step.

Before a step the host puts the parameters of its rows into the argument storage that travels with the step's inputs;
during the step the device chooses by them. With steps in flight the host does not know a row's last token yet when it
prepares the next, so what depends on that token (`bad_words`) is decided on the device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from openai_bls.engine.sampling import MOST_CANDIDATES, Plan, choose, random_bits

_ROWS = 5  # temperature, top_p, top_k, min_p, random bits: one int32 row each in the argument storage
_ANY = -1


@dataclasses.dataclass(frozen=True, slots=True)
class Sampling:
    """How one sequence's tokens are chosen."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    bad_words: tuple[tuple[int, ...], ...] = ()

    @property
    def row(self) -> tuple[float, float, float]:
        """The float parameters in the order of the argument rows."""
        return (self.temperature, self.top_p, self.min_p)


# Warming up makes sequences of its own.
_WARM_UP = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)


class Sampler:
    """Chooses the next token of every row of a step."""

    do_processing = True
    tensors_required = _ROWS

    def __init__(self, *, on_gpu: bool) -> None:
        """Args: on_gpu: never look at the device's values from the host, which would wait for all steps in flight."""
        self._on_gpu = on_gpu
        self._plan = Plan(sampled=False, top_k=0, top_p=False, min_p=False)
        self._bans: list[tuple[int, int, int]] = []
        """(row, the last token with which it holds, forbidden token)."""

    def check_kwargs(self, kwargs: dict[str, Any]) -> None:
        """Nothing to check: admission did."""

    def fill_defaults(self, storage: torch.Tensor) -> None:
        """Rows without a request are greedy."""
        storage.zero_()

    def prepare_tensor_args(self, requests_in_batch: Sequence[Any], arg_storage: torch.Tensor) -> torch.Tensor:
        """Put the parameters of a step's requests into `arg_storage`, int32 [5, columns], before the step."""
        states = [item.state for item in requests_in_batch if item.has_new_token]
        params: list[Sampling] = [state.logit_processor_kwargs.get("sampling", _WARM_UP) for state in states]
        self._bans = [
            (row, last, banned)
            for row, (state, p) in enumerate(zip(states, params, strict=True))
            if p.bad_words
            for last, banned in _bans(p.bad_words, state)
        ]
        drawn = [p for p in params if p.temperature > 0]
        self._plan = self._plan_for(drawn)
        if not drawn:
            return arg_storage
        count = len(params)
        rows = np.empty((_ROWS, count), np.int32)
        floats = np.array([p.row for p in params], np.float32).reshape(count, 3).T.copy()
        rows[:2] = floats.view(np.int32)[:2]
        rows[2] = [p.top_k for p in params]
        rows[3] = floats.view(np.int32)[2]
        # By now the offset counts this step's tokens too: it is the index of the token about to be chosen, however
        # the prompt was split, shared or recomputed.
        rows[4] = random_bits(
            np.array([p.seed for p in params], np.uint64),
            np.array([state.position_offset for state in states], np.uint64),
        )
        arg_storage[:, :count].copy_(torch.from_numpy(rows))
        return arg_storage

    def _plan_for(self, drawn: Sequence[Sampling]) -> Plan:
        top_k = max((p.top_k for p in drawn), default=0)
        top_p = any(p.top_p < 1 for p in drawn)
        bounded = top_k <= MOST_CANDIDATES and all(p.top_k > 0 for p in drawn)
        return Plan(
            sampled=bool(drawn),
            top_k=top_k,
            top_p=top_p,
            min_p=any(p.min_p > 0 for p in drawn),
            bounded=bounded,
            static=self._on_gpu and not bounded,
        )

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, args: torch.Tensor) -> torch.Tensor:
        """Write infinity over the chosen tokens in `scores`, [rows, vocabulary]; the caller takes the highest.

        Greedy rows keep their logits, so they get what `generate` gets. `input_ids` are the rows' last tokens.
        """
        self._forbid(input_ids, scores)
        if not self._plan.sampled:
            return scores
        return scores.scatter_(1, self._choose(scores, args[:, : scores.size(0)]), torch.inf)

    def pick(self, last_ids: torch.Tensor, logits: torch.Tensor, args: torch.Tensor) -> torch.Tensor:
        """The next token of each row of `logits`, which may be changed; `args` are int32 [5, rows]."""
        self._forbid(last_ids, logits)
        if not self._plan.sampled:
            return logits.argmax(dim=-1)
        return self._choose(logits.float(), args).squeeze(-1)

    def _choose(self, scores: torch.Tensor, args: torch.Tensor) -> torch.Tensor:
        args = args.contiguous()
        floats = args.view(torch.float32)
        return choose(scores, floats[0], floats[1], args[2], floats[3], args[4], self._plan)

    def _forbid(self, last_ids: torch.Tensor, scores: torch.Tensor) -> None:
        if not self._bans:
            return
        rows, last, banned = torch.tensor(self._bans).T.to(scores.device, non_blocking=True)
        holds = (last == _ANY) | (last_ids[rows] == last)
        penalty = torch.where(holds, -torch.inf, 0.0).to(scores.dtype)
        scores.index_put_((rows, banned), penalty, accumulate=True)


def _bans(words: Sequence[tuple[int, ...]], state: Any) -> Iterator[tuple[int, int]]:
    """(last token or -1 for any, token that would then complete a forbidden word) for a step of a request.

    The step's last token may still be on its way; the tokens before it are known.
    """
    longest = max(len(word) for word in words) - 2
    end = state.position_offset - 1
    start, split = max(0, end - longest), len(state.initial_tokens)
    tail: tuple[int, ...] = ()
    if longest > 0:
        before = state.initial_tokens[start:end] if start < split else []
        tail = (*before, *state.generated_tokens[max(0, start - split) : max(0, end - split)])
    for word in words:
        if len(word) == 1:
            yield _ANY, word[0]
        else:
            head = word[:-2]
            if len(head) <= len(tail) and head == tail[len(tail) - len(head) :]:
                yield word[-2], word[-1]
