"""Budget of drafts: the time that they may cost is what they have brought lately, and a small share of all time.

A wrong draft costs a wider step that does not overlap its neighbours, and the passes of a draft model, which may have a
prompt to read first. What it costs and what a right one brings is measured from step to step, over all sequences: a
step is as late for those that have no draft. So answers take hardly longer than without drafts, however wrong these
are, how many sequences try theirs, and how often that changes within a text.
"""

from __future__ import annotations

import dataclasses

_SHARE = 0.01
"""Share of the time of all steps that wrong drafts of one kind may take."""
_MOST_GIVEN = 3.0
"""Steps without drafts whose time drafts of one kind have at first, and up to which that share is saved."""
_MOST_SAVED = 8.0
"""Most time that drafts of one kind may save up, in steps without drafts."""
_MOST_LOST = 16.0
"""Most time that one step may take from an account, in steps without drafts: a longer step was held up by something
else."""
_FIRST_STEP = 1.35
"""Time of a step with drafts in steps without, before it is measured."""
_NEWEST = 0.1
"""Weight of the newest time in an average."""
_FIRST_ODDS = 0.7
"""Share of a draft model's guesses that is taken to be right before any is known."""
_NEWEST_ODDS = 0.05
"""Weight of the newest guess in that share."""


@dataclasses.dataclass(slots=True)
class Account:
    """Time that drafts of one kind may cost."""

    _saved: float | None = None
    """Seconds; None before a step without drafts is measured."""

    @property
    def is_overdrawn(self) -> bool:
        """True while nothing may be drafted, as at first, when there is nothing to measure drafts by."""
        return self._saved is None or self._saved < 0

    def book(self, given: float, brought: float, plain: float) -> None:
        """Add seconds.

        Args:
            given: seconds that the share of all time adds.
            brought: seconds that drafts have saved; negative if they have cost more.
            plain: seconds of a step without drafts.
        """
        saved = _MOST_GIVEN * plain if self._saved is None else self._saved
        saved = max(saved, min(_MOST_GIVEN * plain, saved + given))
        self._saved = min(_MOST_SAVED * plain, saved + max(brought, -_MOST_LOST * plain))


@dataclasses.dataclass(slots=True)
class DraftBudget:
    """Time that drafts have brought and cost; told of each step by the engine's thread."""

    odds: float = _FIRST_ODDS
    """Share of a draft model's guesses that are right, of late, in all sequences."""
    takes_prompts: bool = False
    """Some sequence waits for its first token: what a draft costs and brings cannot be told."""
    copying: Account = dataclasses.field(default_factory=Account)
    """Account of drafts that cost no more than a wider step: copies, and what a grammar forces."""
    guessing: Account = dataclasses.field(default_factory=Account)
    """Account of a draft model's guesses."""
    _plain: dict[int, float] = dataclasses.field(default_factory=dict)
    """Sequences → average seconds of a step in which each gets one token."""
    _drafting: float = 0.0
    """Average seconds of a step with drafts, the draft model's passes left out."""
    _began: float = 0.0
    _sequences: int = 0
    """Sequences of the step being prepared, if all of them decode; else 0."""
    _tokens: int = 0
    _tried: Account | None = None
    """Account of the drafts that the step has, or was to have."""
    _resumes: Account | None = None
    """Account of the drafts that the step before had: steps do not overlap again before the next one."""
    _drafted: bool = False
    _guessing: float = 0.0

    @property
    def plain_seconds(self) -> float:
        """Seconds of a step without drafts of as many sequences as there are; 0 if none has been measured."""
        known = self._plain
        return known[min(known, key=lambda count: abs(count - self._sequences))] if known else 0.0

    @property
    def step_cost(self) -> float:
        """Time of a step with drafts, without that of guessing, in steps without."""
        plain = self.plain_seconds
        return self._drafting / plain if plain and self._drafting else _FIRST_STEP

    def begin(self, now: float, sequences: int, decoding: int) -> None:
        """Note that a step is being prepared, and book the one before.

        Args:
            now: current time in seconds.
            sequences: sequences that wait or are in progress.
            decoding: sequences among them that have had a token.
        """
        if self._sequences and decoding:  # nobody has waited for a request meanwhile
            self._book(now - self._began, sequences)
        else:
            self._tried = None
        self._began, self._tokens = now, 0
        self.takes_prompts = sequences != decoding
        self._sequences = 0 if self.takes_prompts else sequences
        self._resumes, self._tried = self._tried, None
        self._drafted, self._guessing = False, 0.0

    def note_wait(self) -> None:
        """Note that the step has waited for the one before so as to have drafts."""
        self._tried = self._tried or self.copying

    def note_guesses(self, seconds: float) -> None:
        """Note the time that a draft model took."""
        self._tried, self._guessing = self.guessing, seconds

    def note_draft(self) -> None:
        """Note that the step has a draft."""
        self._tried, self._drafted = self._tried or self.copying, True

    def note_tokens(self, count: int) -> None:
        """Note new tokens of all sequences."""
        self._tokens += count

    def note_guess(self, *, right: bool) -> None:
        """Note whether a guess of the draft model was right."""
        self.odds += _NEWEST_ODDS * (right - self.odds)

    def _book(self, seconds: float, sequences: int) -> None:
        count = self._sequences
        account = self._tried or self._resumes
        if account is None and self._tokens == count == sequences:
            self._plain[count] = averaged(self._plain.get(count, 0.0), seconds)
        plain = self.plain_seconds
        if not plain:
            return
        if self._drafted:
            self._drafting = averaged(self._drafting, max(0.0, seconds - self._guessing))
        worth = plain * self._tokens / count
        for one in (self.copying, self.guessing):
            one.book(_SHARE * worth, worth - seconds if one is account else 0.0, plain)


def averaged(before: float, newest: float) -> float:
    """Moving average of times, in which one that was held up counts little; 0 is none yet."""
    return newest if not before else (1 - _NEWEST) * before + _NEWEST * min(newest, 2 * before)
