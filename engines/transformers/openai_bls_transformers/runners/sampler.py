"""Sampler of a step, in the place of continuous batching's list of logits processors.

Before a step the host puts the sampling parameters of its rows into the argument storage, which travels with the step's
inputs; after the forward pass the device samples by them. Logits processors of single sequences come beside it
(`logits_processors`, `logits_processors_device`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from openai_bls.engines.not_finite import NOT_FINITE
from openai_bls.engines.random_bits import random_bits
from openai_bls_transformers.model.lora_layers import LoraLayers
from openai_bls_transformers.runners.runner import Sampling
from openai_bls_transformers.sampling.logits_processors import LogitsUpdate
from openai_bls_transformers.sampling.logits_processors_device import StepLogprobs, apply
from openai_bls_transformers.sampling.sampling import MOST_CANDIDATES, Plan, choose
from openai_bls_transformers.speculation.speculation import Speculator, rows_of

_ROWS = 5  # temperature, top_p, top_k, min_p, random bits: one int32 row each in the argument storage

# Warming up makes sequences of its own.
_WARM_UP = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)


def likeliest(logits: torch.Tensor) -> torch.Tensor:
    """The likeliest token of each row, int64 [rows]; `NOT_FINITE` where the model has computed NaN or infinity.

    Args:
        logits: [rows, vocabulary], as the model gives them.
    """
    # A NaN counts as the highest number.
    best, tokens = logits.max(dim=-1)
    return torch.where(best.isfinite(), tokens, NOT_FINITE)


class Sampler:
    """Samples the next token of every row of a step."""

    do_processing = True

    def __init__(self, *, on_gpu: bool, lora: LoraLayers | None = None, speculator: Speculator | None = None) -> None:
        """Start with a step of nothing.

        Args:
            on_gpu: whether the model runs on a GPU: the host then never looks at the device's values, which would wait
                for all steps in flight.
            lora: layers that take the slots of a step's tokens from a row of the argument storage.
            speculator: speculator whose drafts make several rows of a sequence; None without drafts.
        """
        self._speculator = speculator
        self._on_gpu = on_gpu
        self._lora = lora
        self.tensors_required = _ROWS + (lora is not None)
        self._plan = Plan(sampled=False, top_k=0, top_p=False, min_p=False)
        self._update: LogitsUpdate | None = None

    @property
    def is_greedy(self) -> bool:
        """True if the next tokens are the likeliest ones, all of them."""
        return self._update is None and not self._plan.sampled

    @property
    def needs_last_tokens(self) -> bool:
        """True if `pick` needs the tokens of the step before on the host, for a grammar's bitmask."""
        return self._update is not None and bool(self._update.constrained)

    def check_kwargs(self, kwargs: dict[str, Any]) -> None:
        """Nothing to check: admission did."""

    def fill_defaults(self, storage: torch.Tensor) -> None:
        """Rows without a request are greedy."""
        storage.zero_()

    def prepare_tensor_args(self, requests_in_batch: Sequence[Any], arg_storage: torch.Tensor) -> torch.Tensor:
        """Put the parameters of a step's requests into `arg_storage`, int32 [rows, columns], before the step."""
        if self._lora is not None:
            self._lora.prepare(requests_in_batch, arg_storage[_ROWS])
        states = [item.state for item in requests_in_batch if item.has_new_token]
        if self._speculator is not None and self._speculator.drafting:
            states = rows_of(states)
        params: list[Sampling] = [state.logit_processor_kwargs.get("sampling", _WARM_UP) for state in states]
        processed = [(row, p.processors) for row, p in enumerate(params) if p.processors is not None]
        update = LogitsUpdate()
        for row, processors in processed:
            processors.collect(row, states[row], update)
        self._update = update if processed else None
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
        arg_storage[:_ROWS, :count].copy_(torch.from_numpy(rows))
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

    def pick(
        self, last_ids: torch.Tensor, logits: torch.Tensor, args: torch.Tensor, greedy: torch.Tensor
    ) -> torch.Tensor:
        """The next token of each row, [rows]; `NOT_FINITE` stays where it is in `greedy`.

        Args:
            last_ids: last token of each row's sequence, [rows].
            logits: [rows, vocabulary]; may be changed.
            args: int32 [arguments, rows], of the argument storage.
            greedy: likeliest token of each row by `logits` as they came, [rows].
        """
        if self.is_greedy:
            return greedy
        update, logprobs = self._update, None
        if update is not None:
            if update.logprobs:
                logprobs = StepLogprobs(update.logprobs, logits)
            if update.changes_logits:
                logits = logits.float()
                apply(update, last_ids, logits)
        chosen = self._choose(logits.float(), args).squeeze(-1) if self._plan.sampled else logits.argmax(dim=-1)
        if logprobs is not None:
            logprobs.finish(chosen)
        return torch.where(greedy < 0, NOT_FINITE, chosen)

    def _choose(self, scores: torch.Tensor, args: torch.Tensor) -> torch.Tensor:
        args = args.contiguous()
        floats = args.view(torch.float32)
        return choose(scores, floats[0], floats[1], args[2], floats[3], args[4], self._plan)
