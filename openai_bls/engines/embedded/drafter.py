"""Drafter of one sequence: guesses of its next tokens, looked up in its own text and in the prediction of its request,
or made by a draft model where these have none.

A draft costs little where it is right and a wider step where it is wrong. So its length follows what was accepted
lately, and after several drafts of which nothing was accepted the sequence goes on without for a while, longer each
time.
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
    draft_model: DraftModel | None = None
    """Guesses where nothing is found."""

    def lookup(self, tokens: Sequence[int] = ()) -> NgramLookup:
        """A lookup in `tokens`."""
        return NgramLookup(self.lookup_min, self.lookup_max, tokens)


class _Source:
    """Text that the output may copy, and the place up to which it has.

    A change after some copied tokens is taken for an edit behind which the copy goes on: a token that stands a little
    further on has left out those between, any other has taken the place of one. Where that is wrong, n-grams tell.
    """

    def __init__(self, lookup: NgramLookup, *, follows: bool = False) -> None:
        """Args: lookup: in the text; follows: the output is expected to begin as the text does."""
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
            near: look first not far from where the output was last.
        """
        if self.place is None:
            found = self.lookup.nearest(tail, self._at) if near else None
            if found is None:
                found = self.lookup.find(tail)
            if found is not None:
                self._at, self._follows, self._copied = found, True, self.lookup.shortest
        return self.place


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
        self._history = _Source(config.lookup())
        self._tokens = list(prompt_token_ids)
        self._followed = len(self._tokens)
        """Tokens that `_history` has been told of."""
        self._prediction = _Source(config.lookup(prediction), follows=True) if prediction else None
        self._processors = processors
        self._length = min(_FIRST_LENGTH, config.num_tokens)
        self._misses = 0
        self._resumes_at = 0

    def __deepcopy__(self, memo: object) -> Drafter:
        """Itself: a sequence that is preempted and started again keeps its state."""
        return self

    def observe(self, token_ids: Sequence[int]) -> int:
        """Take in new tokens of the sequence; returns how many of them its prediction had in their place."""
        self._tokens += token_ids
        return 0 if self._prediction is None else sum(map(self._prediction.follow, token_ids))

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
            self._length = min(self._config.num_tokens, max(2 * accepted, self._length))
        else:
            self._length = max(accepted + 1, self._length - 1, 1)
        if accepted:
            self._misses = 0
        else:
            self._pause()
        self.withdraw()

    def _pause(self) -> None:
        """Go on without drafts for a while: for no time at first, as one miss may be an edit."""
        self._misses += 1
        self._resumes_at = len(self._tokens) + min(_LONGEST_PAUSE, (1 << self._misses) - 2)
