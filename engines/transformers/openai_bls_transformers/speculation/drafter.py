"""Drafter of one sequence: guesses of its next tokens, looked up in its own text and in the prediction of its request.

Where these have none, a grammar may allow but one text.

A draft costs little where it is right and a wider step where it is wrong. So its length follows what was accepted
lately, and after several drafts of which nothing was accepted the sequence goes on without for a while, longer each
time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from openai_bls.engines.grammars.matcher import Bitmask
from openai_bls_transformers.sampling.logits_processors import HostLogitsProcessors
from openai_bls_transformers.speculation.draft_budget import DraftBudget
from openai_bls_transformers.speculation.ngram_lookup import NgramLookup

_FIRST_LENGTH = 4
"""Tokens of the first draft."""
_LONGEST_PAUSE = 128
"""Tokens of the longest pause after rejected drafts."""
_LEAST_COPIED = 3
"""Tokens copied in a row before a change is taken for an edit."""
_LEFT_OUT = 8
"""Tokens that an edit may leave out, at most."""
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
    budget: DraftBudget = dataclasses.field(default_factory=DraftBudget)
    """Time budget of the engine's drafts."""

    def lookup(self, tokens: Sequence[int] = ()) -> NgramLookup:
        """A lookup in `tokens`."""
        return NgramLookup(self.lookup_min, self.lookup_max, tokens)


class _Source:
    """Text that the output may copy, and the place up to which it has.

    A change after some copied tokens is taken for an edit behind which the copy goes on: a token that stands a little
    further on has left out those between, any other has taken the place of one. Where that is wrong, n-grams tell.
    """

    def __init__(self, lookup: NgramLookup, *, follows: bool = False) -> None:
        """Args: lookup: n-grams of the text; follows: the output is expected to begin as the text does."""
        self.lookup = lookup
        self._at = 0
        self._follows = follows
        self._copied = 0
        """Tokens in a row."""

    @property
    def place(self) -> int | None:
        """Index of the token that is expected next; None if the output is elsewhere."""
        return self._at if self._follows and self._at < len(self.lookup.tokens) else None

    def follow(self, token_id: int) -> bool:
        """Take in a token of the output; True if it is the one that was expected."""
        place, tokens = self.place, self.lookup.tokens
        if place is None:
            self._follows = False
        elif tokens[place] == token_id:
            self._at += 1
            self._copied += 1
            return True
        else:
            further = tokens[place + 1 : place + 1 + _LEFT_OUT]
            self._follows = self._copied >= _LEAST_COPIED
            self._at += further.index(token_id) + 2 if self._follows and token_id in further else self._follows
        self._copied = 0
        return False

    def find(self, tail: Sequence[int], *, near: bool = False) -> int | None:
        """The place, looked for if the output is elsewhere, of which `tail` is the end.

        Args:
            tail: tokens.
            near: whether the search begins close to where the output was last.
        """
        if self.place is None:
            found = self.lookup.nearest(tail, self._at) if near else None
            if found is None:
                found = self.lookup.find(tail)
            if found is not None:
                self._at, self._follows, self._copied = found, True, self.lookup.shortest
        return self.place


class _Pace:
    """Length of drafts of one kind, and pauses between them."""

    def __init__(self, most: int, budget: DraftBudget) -> None:
        """Args: most: tokens of any draft; budget: time budget of the engine's drafts."""
        self._most = most
        self._budget = budget
        self._length = min(_FIRST_LENGTH, most)
        self._misses = 0
        self._resumes_at = 0

    def length(self, most: int, place: int) -> int:
        """Tokens of a draft at index `place` of the sequence, at most `most`; 0 during a pause."""
        return 0 if place < self._resumes_at or self._budget.is_overdrawn else max(0, min(most, self._length))

    def settle(self, drafted: int, accepted: int, place: int) -> None:
        """Note how many tokens of a draft were accepted."""
        if accepted == drafted:
            self._length = min(self._most, max(2 * accepted, self._length))
        else:
            self._length = max(accepted + 1, self._length - 1)
        if accepted:
            self._misses = 0
        else:
            self.pause(place)

    def pause(self, place: int) -> None:
        """Go on without drafts for a while: for no time at first, as one miss may be an edit."""
        self._misses += 1
        self._resumes_at = place + min(_LONGEST_PAUSE, (1 << self._misses) - 2)


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
            config: settings of the engine's speculative decoding.
            prompt_token_ids: prompt of the request in token ids.
            prediction: predicted output of the request in token ids.
            processors: processors of the sequence, whose grammar a draft has to follow.
        """
        self.draft: list[int] = []
        """Tokens that go along in the step that is being prepared, or runs."""
        self.masks: list[Bitmask] = []
        """Tokens that the sequence's grammar allows after each token of the draft; empty without a grammar."""
        self._config = config
        self._history = _Source(config.lookup())
        self._tokens = list(prompt_token_ids)
        self._followed = len(self._tokens)
        """Tokens that `_history` has been told of."""
        self._prediction = _Source(config.lookup(prediction), follows=True) if prediction else None
        self._grammar = None if processors is None or processors.constraint is None else processors
        self._copying, self._spelling = (_Pace(config.num_tokens, config.budget) for _ in range(2))
        self._pace = self._copying
        """Pace of the current draft."""

    def __deepcopy__(self, memo: object) -> Drafter:
        """Itself: a sequence that is preempted and started again keeps its state."""
        return self

    def observe(self, token_ids: Sequence[int]) -> int:
        """Take in new tokens of the sequence; returns how many of them its prediction had in their place."""
        self._tokens += token_ids
        return 0 if self._prediction is None else sum(map(self._prediction.follow, token_ids))

    @property
    def will_draft(self) -> bool:
        """True if there would be a draft behind the token of the step in flight, as far as can be told before."""
        return bool(self.look_up(1)) or len(self.forced(2)) > 1

    def look_up(self, most: int) -> list[int]:
        """What may come next, at most `most` tokens; empty if nothing speaks for anything, and during a pause."""
        count = self._copying.length(most, len(self._tokens))
        if not count:
            return []
        tail = self._tokens[-self._config.lookup_max :]
        if self._prediction is not None and (place := self._prediction.find(tail, near=True)) is not None:
            return self._prediction.lookup.tokens[place : place + count]
        history = self._history
        for token_id in self._tokens[self._followed :]:
            history.follow(token_id)
        self._followed = len(self._tokens)
        indexed = len(history.lookup.tokens)
        history.lookup.extend(self._tokens[indexed : indexed + _INDEXED_AT_ONCE])
        place = history.find(tail)
        return [] if place is None else history.lookup.continuation(place, count)

    def forced(self, most: int) -> list[int]:
        """The only text that the grammar allows next, at most `most` tokens; empty without one, and during a pause."""
        count = self._spelling.length(most, len(self._tokens))
        return [] if self._grammar is None or not count else self._grammar.forced()[:count]

    def propose(self, guess: Sequence[int], most: int, stop_token_ids: frozenset[int] | set[int]) -> list[int]:
        """Make a guess the draft, up to a stop token and while the grammar allows it; else what the grammar forces.

        Args:
            guess: tokens; empty if there is none.
            most: tokens of a draft.
            stop_token_ids: stop tokens of the sequence.
        """
        self._pace = self._copying
        ends = (i for i, token_id in enumerate(guess[:most]) if token_id in stop_token_ids)
        self.draft = self._allowed(guess[: next(ends, most)])
        if guess and not self.draft:
            self._pace.pause(len(self._tokens))
        if not self.draft and (forced := self.forced(most)):
            self._pace, self.draft = self._spelling, self._allowed(forced)
        return self.draft

    def _allowed(self, guess: Sequence[int]) -> list[int]:
        """The beginning of a guess that the grammar allows and does not end with; sets the masks."""
        self.masks = []
        if self._grammar is None or not guess:
            return list(guess)
        self.masks = self._grammar.look_ahead(guess)
        return list(guess[: len(self.masks)])

    def withdraw(self) -> None:
        """Forget the draft: its step does not take place."""
        self.draft, self.masks = [], []

    def settle(self, accepted: int) -> None:
        """Note how many tokens of the draft were accepted."""
        self._pace.settle(len(self.draft), accepted, len(self._tokens))
        self.withdraw()
