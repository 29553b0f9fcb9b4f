"""Speculative decoding under continuous batching: drafts go along in a step, which then says how much of them is right.

A sequence with a draft of k tokens takes k + 1 rows of a step, like a piece of a prompt, and a token is sampled at each
of them. What a row samples depends on the tokens before it and on its position alone. So where the token sampled at a
row is the draft's, the next row is what the next step would have been, and the first token that is not the draft's is
the last that counts. With any sampling parameters the output is what it would be without drafts.

Rejected tokens leave nothing but keys and values behind the sequence's end, which the next step overwrites. Pages are
shared by their content, and which of them are complete is counted after the verification.

Where steps overlap, a draft needs the tokens of the step in flight: it is waited for before the next one is prepared.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers.generation.continuous_batching.requests import RequestStatus

from openai_bls.core.manifest import EngineLoadError
from openai_bls.engines.grammars.matcher import Bitmask
from openai_bls_transformers.options import EngineOptions
from openai_bls_transformers.speculation.drafter import Drafter, SpeculationConfig

_SUBJECT = "speculative decoding"


def speculation_config(options: EngineOptions) -> SpeculationConfig | None:
    """Settings of an engine's speculative decoding; None if it is off.

    Raises:
        EngineLoadError: settings exclude each other.
    """
    if options.speculative_method == "none":
        return None
    shortest, longest = options.prompt_lookup_min, options.prompt_lookup_max
    if shortest > longest:
        raise EngineLoadError(f"prompt_lookup_min is {shortest}, above prompt_lookup_max {longest}")
    return SpeculationConfig(
        num_tokens=options.num_speculative_tokens,
        lookup_min=shortest,
        lookup_max=longest,
        max_batch_size=options.speculative_disable_by_batch_size,
    )


def refusal(config: Any, runner: str, *, paged: bool, images: bool) -> str | None:
    """Reason why a model cannot be run with drafts.

    Args:
        config: configuration of the model.
        runner: `RunnerChoice.runner`.
        paged: attention is `gpu.paged_attention`'s, whose cache keeps the keys and values behind a window.
        images: prompts may hold images.

    Returns:
        None if it can.
    """
    if images:
        return f"{_SUBJECT} is not for a model that takes images (--max-images 0 serves its text alone)"
    if runner != "continuous_batching":
        return f"{_SUBJECT} needs the runner continuous_batching"
    if find_spec("transformers.generation.continuous_batching.cache_allocators") is None:
        return f"{_SUBJECT} needs a newer transformers"
    if not paged and not _has_full_attention(config):
        return (
            f"{_SUBJECT} needs full attention in every layer, or the attention paged: any other keeps no more of a "
            "layer than its window, and a rejected draft has overwritten a part of that"
        )
    return None


def _has_full_attention(config: Any) -> bool:
    """True if every layer of a model, by its configuration, has full attention."""
    text = config.get_text_config(decoder=True)
    layers = getattr(text, "layer_types", None) or []
    return all(layer == "full_attention" for layer in layers) if layers else not getattr(text, "sliding_window", None)


def drafter_of(state: Any) -> Drafter | None:
    """The drafter of a sequence of continuous batching; None for those of a warm-up."""
    sampling = state.logit_processor_kwargs.get("sampling")
    drafter: Drafter | None = None if sampling is None else sampling.drafter
    return drafter


def _decoding(scheduler: Any) -> Iterator[Any]:
    return (state for state in scheduler.active_requests.values() if state._status is RequestStatus.DECODING)


def _tokens_left(state: Any) -> int:
    """Tokens that a sequence's draft may have, so that the step's last one is within its limit."""
    return int(state._new_tokens_limit - len(state.generated_tokens) - 1)


@dataclasses.dataclass(slots=True)
class DraftRow:
    """A row of a sequence with a draft, in the form of a sequence that has got as far as the row."""

    initial_tokens: list[int]
    generated_tokens: list[int]
    """Up to the row's own token."""
    position_offset: int
    """Index in the sequence of the token that is sampled here."""
    logit_processor_kwargs: dict[str, Any]
    drafted: int
    """Tokens of the draft before the token that is sampled here."""
    mask: Bitmask | None
    """Tokens that the sequence's grammar allows here, after a token of the draft."""

    def fill_bitmask(self, mask: npt.NDArray[np.int32]) -> bool:
        """Write the tokens that the grammar allows here."""
        if self.mask is not None:
            mask[:] = self.mask
        return self.mask is not None


def rows_of(states: Sequence[Any]) -> list[Any]:
    """The rows of a step's sequences: a sequence itself, or all rows of one with a draft."""
    return [row for state in states for row in _rows(state)]


def _rows(state: Any) -> Iterator[Any]:
    drafter = drafter_of(state)
    if drafter is None or not drafter.draft:
        yield state
        return
    draft, masks = drafter.draft, drafter.masks
    for count in range(len(draft) + 1):
        yield DraftRow(
            state.initial_tokens,
            state.generated_tokens + draft[:count],
            state.position_offset - len(draft) + count,
            state.logit_processor_kwargs,
            count,
            masks[count - 1] if masks and count else None,
        )


class Speculator:
    """Drafts of a step's sequences, the step's inputs for them, and their verification."""

    def __init__(self, config: SpeculationConfig) -> None:
        """Args: config: settings of the engine's speculative decoding."""
        self.config = config
        self.draft_tokens = 0
        """Tokens drafted since the start."""
        self.accepted_tokens = 0
        """Drafted tokens that were right."""
        self._drafted: list[Drafter] = []
        """Drafters with a draft in the step that is being prepared, or runs."""
        self.step_in_flight = False
        """The next step is prepared before the tokens of the one before it are known, so nothing can be drafted."""
        self._waited = False
        """The next step waits for the one in flight so as to have drafts."""
        self._cache: Any = None
        self._rows = 0

    @property
    def drafting(self) -> bool:
        """True if a step with drafts is being prepared, or runs."""
        return bool(self._drafted)

    def install(self, processor: Any) -> None:
        """Let the steps of a batch processor have drafts."""
        self._cache = processor.cache
        self._rows = processor.cb_config.max_requests_per_batch
        ios = processor.inputs_and_outputs
        for io in [pair.host_io for pair in ios.io_pairs] if hasattr(ios, "io_pairs") else [ios]:
            _Inputs(self, io)

    def waits(self, scheduler: Any) -> bool:
        """True if the next step needs the tokens of the step in flight: it has drafts, or the next one would."""
        if self.drafting:
            return True
        if self._room(scheduler) < 1:
            return False
        decoding = (drafter_of(state) for state in _decoding(scheduler))
        self._waited = any(drafter is not None and drafter.will_draft for drafter in decoding)
        return self._waited

    def _room(self, scheduler: Any) -> int:
        """Tokens that all drafts of the next step may have, beside a row for every sequence that may come."""
        active = len(scheduler.active_requests)
        if not 0 < active <= self.config.max_batch_size:
            return 0
        sequences = min(scheduler.max_requests_per_batch, active + len(scheduler.waiting_requests))
        return int(self._rows - sequences)

    def propose(self, scheduler: Any) -> None:
        """Draft for the sequences that decode, where their last tokens are known, as far as rows and pages go."""
        active = len(scheduler.active_requests)
        few = active <= self.config.max_batch_size
        decoding = sum(1 for _ in _decoding(scheduler)) if few else 0
        budget = self.config.budget
        budget.begin(time.perf_counter(), active + len(scheduler.waiting_requests), decoding)
        if self._waited:
            budget.note_drafts()
            self._waited = False
        if self.step_in_flight:
            return
        room = self._room(scheduler)
        for state in _decoding(scheduler):
            drafter, most = drafter_of(state), min(room, _tokens_left(state))
            if drafter is None or most < 1 or len(state.tokens_to_process) != 1:
                continue
            draft = drafter.propose(drafter.look_up(most), most, state._eos_token_ids)
            if not draft:
                continue
            room -= len(draft)
            if not self._cache.can_store_request_tokens(state, 1 + len(draft)):
                drafter.withdraw()
                continue
            state.tokens_to_process = state.tokens_to_process + draft
            self._drafted.append(drafter)
            budget.note_drafts()

    def confirm(self, active: Iterable[Any], scheduled: Sequence[Any] | None) -> None:
        """Take the drafts back of sequences that are not in the next step."""
        if not self._drafted:
            return
        keys = {item.state.request_id for item in scheduled or ()}
        for state in active:
            drafter = drafter_of(state)
            if drafter is not None and drafter.draft and state.request_id not in keys:
                state.tokens_to_process = state.tokens_to_process[:1]
                drafter.withdraw()
        self._drafted = [drafter for drafter in self._drafted if drafter.draft]

    def verify(self, requests: Sequence[Any], tokens: Sequence[int]) -> list[int]:
        """Give accepted tokens to their sequences.

        Args:
            requests: the step's sequences.
            tokens: sampled at its rows.

        Returns:
            The last token that counts of each sequence with a new token.
        """
        budget = self.config.budget
        if not self.drafting:
            budget.note_tokens(len(tokens))
            return list(tokens)
        last: list[int] = []
        row = 0
        for item in requests:
            if not item.has_new_token:
                continue
            state, drafter = item.state, drafter_of(item.state)
            if drafter is None or not drafter.draft:
                last.append(tokens[row])
                row += 1
                continue
            draft = drafter.draft
            accepted = 0
            while accepted < len(draft) and tokens[row + accepted] == draft[accepted]:
                accepted += 1
            last.append(tokens[row + accepted])
            row += len(draft) + 1
            if state._status is RequestStatus.DECODING:  # not cancelled meanwhile
                state.generated_tokens += draft[:accepted]
                state.position_offset -= len(draft) + 1
                item.complete_blocks = self._cache.count_new_complete_blocks(state, accepted + 1)
                state.position_offset += accepted + 1
                self.draft_tokens += len(draft)
                self.accepted_tokens += accepted
            budget.note_tokens(accepted)
            drafter.settle(accepted)
        self._drafted = []
        budget.note_tokens(len(last))
        return last


class _Inputs:
    """Inputs and outputs of a step whose sequences may have several rows."""

    def __init__(self, speculator: Speculator, io: Any) -> None:
        """Take the place of two methods of `io`, a `ContinuousBatchingIOs` on the host."""
        self._io = io
        self._speculator = speculator
        self._prepare = io.prepare_batch_tensors
        self._outputs = io.prepare_batch_update
        io.prepare_batch_tensors = self.prepare_batch_tensors
        io.prepare_batch_update = self.prepare_batch_update

    def prepare_batch_tensors(self, requests_in_batch: Sequence[Any], *args: Any, **kwargs: Any) -> None:
        """Write the inputs of a step, then the rows at which it samples; each looks like a sequence from there on."""
        self._prepare(requests_in_batch, *args, **kwargs)
        if not self._speculator.drafting:
            return
        places: list[tuple[str, int]] = []
        end = 0
        for item in requests_in_batch:
            end += item.query_length
            if item.has_new_token:
                drafter = drafter_of(item.state)
                drafted = 0 if drafter is None else len(drafter.draft)
                places += [(item.state.request_id, end - 1 - back) for back in range(drafted, -1, -1)]
        io, rows = self._io, len(places)
        # The next step takes no token from this one, as it waits for it: only the number of rows is read.
        io.req_id_to_new_token_position = {f"{key} {place}": place for key, place in places}
        io.logits_indices[:rows].copy_(torch.tensor([place for _, place in places], dtype=torch.int32))
        count = len(requests_in_batch)
        for ends in (io.cumulative_seqlens_q, *io.cumulative_seqlens_k.values()):
            ends[count + 1 : rows + 1] = ends[count].clone()
        io.num_request_in_batch = max(count, rows)

    def prepare_batch_update(self) -> tuple[list[Any], list[int], None]:
        """The sequences of a step and their last tokens, after the verification of their drafts."""
        requests, tokens, _ = self._outputs()
        return requests, self._speculator.verify(requests, tokens), None
