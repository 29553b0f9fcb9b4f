"""Host half of the logits processors: per-sequence state for biases, penalties, bans, grammars and log-probabilities.

Most sequences have none of them and cost nothing here. For the others each step collects a `LogitsUpdate`, which
`logits_processors_device` applies. While a step is prepared, the last token of a sequence may still be on the device.
So every history here ends before the last token, and the device adds that one. Only a grammar has to know it: its
bitmask is asked for when the tokens of the step before have arrived, while the forward pass runs.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from openai_bls.core.engine_types import GenerationRequest
from openai_bls.engines.grammars.matcher import Bitmask, Constraint

ANY = -1
"""Stands for every token as the last one."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


class Constrained(Protocol):
    """A row under a grammar."""

    def fill_bitmask(self, mask: Bitmask) -> bool:
        """Write the tokens that the grammar allows next; False if there is nothing to sample for any more."""


@dataclasses.dataclass(slots=True)
class LogitsUpdate:
    """One step's changes to the logits of some rows. Empty lists are changes that no row wants."""

    bias: list[tuple[int, Ints, Floats]] = dataclasses.field(default_factory=list)
    """(row, token ids, what is added to their logits)."""
    penalties: list[tuple[int, Penalties, float]] = dataclasses.field(default_factory=list)
    """(row, its penalties, count of the row's last token as output: 0 for a prompt's, else 1)."""
    bans: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)
    """(row, last token with which the ban holds or `ANY`, forbidden token)."""
    constrained: list[tuple[int, Constrained]] = dataclasses.field(default_factory=list)
    """Rows under a grammar."""
    logprobs: list[tuple[int, int, HostLogitsProcessors]] = dataclasses.field(default_factory=list)
    """(row, index in its sequence of the token to be chosen, who wants the log-probabilities)."""

    @property
    def changes_logits(self) -> bool:
        """True if any logit changes."""
        return bool(self.bias or self.penalties or self.bans or self.constrained)

    def bitmasks(self, vocab_size: int) -> tuple[list[int], npt.NDArray[np.int32]]:
        """Rows that a grammar holds, and their allowed tokens, int32 [rows, ceil(vocabulary / 32)].

        Called after the tokens of the step before are accepted. A row whose request has ended meanwhile, or
        whose grammar fails, has none: its token is dropped.
        """
        rows: list[int] = []
        masks = np.empty((len(self.constrained), -(-vocab_size // 32)), np.int32)
        for row, processors in self.constrained:
            if processors.fill_bitmask(masks[len(rows)]):
                rows.append(row)
        return rows, masks[: len(rows)]


class Penalties:
    """Counts of the tokens of one sequence, its last token left out."""

    def __init__(self, prompt_length: int, repetition: float, presence: float, frequency: float) -> None:
        """Args: prompt_length: tokens before the output. The others are fields of `SamplingParams`."""
        self.repetition = repetition
        self.presence = presence
        self.frequency = frequency
        self._prompt_length = prompt_length
        # Without a penalty on repetition the prompt does not matter.
        self._known = 0 if repetition != 1 else prompt_length
        self._slots: dict[int, int] = {}
        self._ids = np.empty(64, np.int64)
        self._counts = np.empty(64, np.float32)

    @property
    def ids(self) -> Ints:
        """Shape [n], all different."""
        return self._ids[: len(self._slots)]

    @property
    def counts(self) -> Floats:
        """Shape [n]: how often the output holds each."""
        return self._counts[: len(self._slots)]

    def copy(self) -> Penalties:
        """The same counts, to go on with tokens that may be rejected."""
        other = copy.copy(self)
        other._slots, other._ids, other._counts = self._slots.copy(), self._ids.copy(), self._counts.copy()
        return other

    def advance(self, state: Any, end: int) -> None:
        """Take in the tokens of `state` up to `end`, an index in its sequence that never goes back."""
        start = self._known
        if end <= start:
            return
        self._known = end
        split = min(max(self._prompt_length, start), end)
        if split > start:
            self._add(np.unique(np.array(tokens(state, start, split), np.int64)).tolist(), 0)
        if end > split:
            self._add(tokens(state, split, end), 1)

    def _add(self, token_ids: Sequence[int], count: int) -> None:
        slots = self._slots
        while len(self._ids) < len(slots) + len(token_ids):
            self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.empty_like(self._counts)])
        for token_id in token_ids:
            slot = slots.get(token_id)
            if slot is None:
                slot = slots[token_id] = len(slots)
                self._ids[slot], self._counts[slot] = token_id, 0
            self._counts[slot] += count


class HostLogitsProcessors:
    """Logits processors of one sequence; used by the engine's thread alone."""

    def __init__(self, request: GenerationRequest, constraint: Constraint | None = None) -> None:
        """Args: constraint: constraint of the request's grammar, at its beginning."""
        params = request.sampling
        self.constraint = constraint
        self.logprobs = request.logprobs
        self.results: dict[int, Any] = {}
        """Index in the sequence → (`StepLogprobs`, row there) of its token."""
        self.failure: Exception | None = None
        """Error of the constraint in place of a bitmask. The token sampled then is void."""
        self.ended = False
        """The request has ended; a step in flight may still hold the sequence."""
        self._prompt_length = len(request.prompt_token_ids)
        self._bad_words = request.bad_words
        self._stops = request.stop_token_ids
        self._first_stop = self._prompt_length + request.min_tokens
        self._bias: tuple[Ints, Floats] | None = None
        if params.logit_bias:
            self._bias = (
                np.fromiter(params.logit_bias.keys(), np.int64),
                np.fromiter(params.logit_bias.values(), np.float32),
            )
        self._penalties: Penalties | None = None
        penalties = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
        if penalties != (1, 0, 0):
            self._penalties = Penalties(self._prompt_length, *penalties)

    def __deepcopy__(self, memo: object) -> HostLogitsProcessors:
        """Itself: a sequence that is preempted and started again keeps its state."""
        return self

    @staticmethod
    def needed(request: GenerationRequest) -> bool:
        """True if a request asks for any of this."""
        params = request.sampling
        return bool(
            request.bad_words
            or (request.min_tokens and request.stop_token_ids)
            or request.logprobs is not None
            or request.grammar is not None
            or params.logit_bias
            or params.repetition_penalty != 1
            or params.presence_penalty
            or params.frequency_penalty
        )

    def collect(self, row: int, state: Any, update: LogitsUpdate) -> None:
        """Add to `update` what the step that has `state`, a sequence or a `speculation.DraftRow`, at `row` needs."""
        # By now the offset counts this step's tokens too: it is the index of the token about to be chosen.
        place = state.position_offset
        if self._bias is not None:
            update.bias.append((row, *self._bias))
        drafted = getattr(state, "drafted", 0)
        if self._penalties is not None:
            penalties = self._penalties.copy() if drafted else self._penalties
            penalties.advance(state, place - 1)
            update.penalties.append((row, penalties, float(place > self._prompt_length)))
        if self._bad_words:
            update.bans.extend((row, last, banned) for last, banned in _completions(self._bad_words, state))
        if place < self._first_stop:
            update.bans.extend((row, ANY, stop) for stop in self._stops)
        if self.constraint is not None:
            update.constrained.append((row, state if drafted else self))
        if self.logprobs is not None:
            update.logprobs.append((row, place, self))

    def look_ahead(self, token_ids: Sequence[int]) -> list[Bitmask]:
        """Bitmasks after each of the tokens, as many as the grammar allows without coming to its end."""
        if self.ended or self.failure is not None or self.constraint is None:
            return []
        return self.constraint.look_ahead(token_ids)

    def forced(self) -> list[int]:
        """Tokens of the only text that the grammar allows next; empty where it allows several."""
        if self.ended or self.failure is not None or self.constraint is None:
            return []
        return self.constraint.forced()

    def fill_bitmask(self, mask: Bitmask) -> bool:
        """Write the tokens that the grammar allows next; False if there is nothing to sample for any more."""
        if self.ended or self.failure is not None or self.constraint is None:
            return False
        try:
            self.constraint.fill(mask)
        except Exception as error:  # ends this request alone
            self.failure = error
            return False
        return True


def tokens(state: Any, start: int, end: int) -> list[int]:
    """The tokens of a sequence from `start` up to `end`, which the host knows."""
    split = len(state.initial_tokens)
    before: list[int] = state.initial_tokens[start:end] if start < split else []
    after: list[int] = state.generated_tokens[max(0, start - split) : max(0, end - split)]
    return before + after


def _completions(words: Sequence[tuple[int, ...]], state: Any) -> Iterator[tuple[int, int]]:
    """(last token or `ANY`, token that would then complete a forbidden word) for a step of a sequence."""
    longest = max(len(word) for word in words) - 2
    end = state.position_offset - 1
    tail = tuple(tokens(state, max(0, end - longest), end)) if longest > 0 else ()
    for word in words:
        if len(word) == 1:
            yield ANY, word[0]
        else:
            head = word[:-2]
            if len(head) <= len(tail) and head == tail[len(tail) - len(head) :]:
                yield word[-2], word[-1]
