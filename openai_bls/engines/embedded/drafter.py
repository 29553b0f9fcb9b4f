"""Drafter of one sequence: guesses of its next tokens, looked up in its own text and in the prediction of its request,
or made by a draft model where these have none.

A draft costs little where it is right and a wider step where it is wrong. So its length follows what was accepted
lately, and after drafts of which nothing was accepted the sequence goes on without for a while, longer each time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from openai_bls.engines.embedded.draft_model import DraftModel
from openai_bls.engines.embedded.grammar_matcher import Bitmask
from openai_bls.engines.embedded.logits_processors import HostLogitsProcessors
from openai_bls.engines.embedded.ngram_lookup import NgramLookup

_FIRST_LENGTH = 4
"""Tokens of the first draft."""
_LONGEST_PAUSE = 128
"""Tokens of the longest pause after rejected drafts."""
_INDEXED_AT_ONCE = 8192
"""Tokens of a prompt that are indexed between two steps, which takes about 2 ms."""


@dataclasses.dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """Settings of speculative decoding."""

    num_tokens: int
    """Most tokens of a draft."""
    lookup_min: int
    """Tokens of the shortest n-gram that is looked up."""
    lookup_max: int
    """Tokens of the longest."""
    max_batch_size: int
    """Sequences in flight beyond which nothing is drafted."""
    draft_model: DraftModel | None = None
    """Guesses where nothing is found."""

    def lookup(self, tokens: Sequence[int] = ()) -> NgramLookup:
        """A lookup in `tokens`."""
        return NgramLookup(self.lookup_min, self.lookup_max, tokens)


class _Prediction:
    """Text that the output is expected to be, and how far the output has got in it."""

    def __init__(self, lookup: NgramLookup) -> None:
        self._lookup = lookup
        self._at = 0
        self._following = True

    @property
    def start(self) -> int | None:
        """Index of the token that is expected next; None if the output has left the prediction."""
        return self._at if self._following and self._at < len(self._lookup.tokens) else None

    def draft(self, start: int, count: int) -> list[int]:
        """Up to `count` tokens from index `start` on."""
        return self._lookup.tokens[start : start + count]

    def follow(self, token_id: int, tail: Sequence[int]) -> bool:
        """Take in a token of the output, with which `tail` ends; True if the prediction has it in this place."""
        if self.start is not None and self._lookup.tokens[self._at] == token_id:
            self._at += 1
            return True
        # Mostly after a change of a few tokens, hence not far from where the output has left it.
        found = self._lookup.nearest(tail, self._at)
        if found is None:
            found = self._lookup.find(tail)
        self._following = found is not None
        if found is not None:
            self._at = found
        return False


class Drafter:
    """Drafts of one sequence; used by the engine's thread alone."""

    def __init__(
        self,
        config: SpeculationConfig,
        prompt_token_ids: Sequence[int],
        prediction: Sequence[int] = (),
        processors: HostLogitsProcessors | None = None,
    ) -> None:
        """Start before the first new token.

        Args:
            config: of the engine.
            prompt_token_ids: of the request.
            prediction: of the request.
            processors: of the sequence, whose grammar a draft has to follow.
        """
        self.draft: list[int] = []
        """Tokens that go along in the step that is being prepared, or runs."""
        self.masks: list[Bitmask] = []
        """What the sequence's grammar allows after each of them; empty without one."""
        self._config = config
        self._history = config.lookup()
        self._tokens = list(prompt_token_ids)
        self._prediction = _Prediction(config.lookup(prediction)) if prediction else None
        self._processors = processors
        self._length = min(_FIRST_LENGTH, config.num_tokens)
        self._misses = 0
        self._resumes_at = 0

    def __deepcopy__(self, memo: object) -> Drafter:
        """Itself: a sequence that is preempted and started again keeps its state."""
        return self

    def observe(self, token_ids: Sequence[int]) -> int:
        """Take in new tokens of the sequence; returns how many of them its prediction had in their place."""
        if self._prediction is None:
            self._tokens += token_ids
            return 0
        predicted = 0
        for token_id in token_ids:
            self._tokens.append(token_id)
            predicted += self._prediction.follow(token_id, self._tokens[-self._config.lookup_max :])
        return predicted

    @property
    def token_ids(self) -> Sequence[int]:
        """Tokens of the sequence, prompt and output."""
        return self._tokens

    @property
    def will_draft(self) -> bool:
        """True if there is a guess for the next step."""
        return bool(self.length(1)) and (self._config.draft_model is not None or bool(self.look_up(1)))

    def length(self, most: int) -> int:
        """Tokens of the next draft, at most `most`; 0 during a pause."""
        return 0 if len(self._tokens) < self._resumes_at else max(0, min(most, self._length))

    def look_up(self, count: int) -> list[int]:
        """What may come next, at most `count` tokens; empty if nothing speaks for anything."""
        start = None if self._prediction is None else self._prediction.start
        if self._prediction is not None and start is not None:
            return self._prediction.draft(start, count)
        indexed = len(self._history.tokens)
        self._history.extend(self._tokens[indexed : indexed + _INDEXED_AT_ONCE])
        start = self._history.find(self._tokens[-self._config.lookup_max :])
        return [] if start is None else self._history.continuation(start, count)

    def propose(self, guess: Sequence[int], stop_token_ids: frozenset[int] | set[int]) -> list[int]:
        """Make a guess the draft: up to a stop token, and while the grammar allows its tokens and does not end."""
        ends = (i for i, token_id in enumerate(guess) if token_id in stop_token_ids)
        draft = list(guess[: next(ends, None)])
        self.masks = []
        processors = self._processors
        if draft and processors is not None and processors.constraint is not None:
            self.masks = processors.look_ahead(draft)
            draft = draft[: len(self.masks)]
        if guess and not draft:
            self._pause()
        self.draft = draft
        return draft

    def withdraw(self) -> None:
        """Forget the draft: its step does not take place."""
        self.draft, self.masks = [], []

    def settle(self, accepted: int) -> None:
        """Note how many tokens of the draft were accepted."""
        if accepted == len(self.draft):
            self._length = min(self._config.num_tokens, 2 * self._length)
        else:
            self._length = max(1, accepted)
        if accepted:
            self._misses = 0
        else:
            self._pause()
        self.withdraw()

    def _pause(self) -> None:
        self._misses += 1
        self._resumes_at = len(self._tokens) + min(_LONGEST_PAUSE, 1 << self._misses)
