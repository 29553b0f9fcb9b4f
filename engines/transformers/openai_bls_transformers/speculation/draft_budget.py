"""Budget of drafts: the time that they may cost is what they have brought lately, and a small share of all time.

A wrong draft costs a wider step that does not overlap its neighbours. What it costs and what a right one brings is
measured from step to step, over all sequences: a step is as late for those that have no draft. So answers take hardly
longer than without drafts, however wrong these are, how many sequences try theirs, and how often that changes within a
text.
"""

from __future__ import annotations

import dataclasses

_SHARE = 0.01
"""Share of the time of all steps that wrong drafts may take."""
_MOST_GIVEN = 3.0
"""Steps without drafts whose time drafts have at first, and up to which that share is saved."""
_MOST_SAVED = 8.0
"""Most time that drafts may save up, in steps without drafts."""
_MOST_LOST = 16.0
"""Most time that one step may take from the budget, in steps without drafts: a longer step was held up by something
else."""
_NEWEST = 0.1
"""Weight of the newest time in an average."""


@dataclasses.dataclass(slots=True)
class DraftBudget:
    """Time that drafts have brought and cost; told of each step by the engine's thread."""

    _saved: float | None = None
    """Seconds; None before a step without drafts is measured."""
    _plain: dict[int, float] = dataclasses.field(default_factory=dict)
    """Sequences → average seconds of a step in which each gets one token."""
    _began: float = 0.0
    _sequences: int = 0
    """Sequences of the step being prepared, if all of them decode; else 0."""
    _tokens: int = 0
    _tried: bool = False
    """The step has drafts, or was to have some."""
    _resumes: bool = False
    """The step before had drafts: steps do not overlap again before the next one."""

    @property
    def is_overdrawn(self) -> bool:
        """True while nothing may be drafted, as at first, when there is nothing to measure drafts by."""
        return self._saved is None or self._saved < 0

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
            self._tried = False
        self._began, self._tokens = now, 0
        self._sequences = sequences if sequences == decoding else 0
        self._resumes, self._tried = self._tried, False

    def note_drafts(self) -> None:
        """Note that the step has a draft, or has waited for the one before so as to have one."""
        self._tried = True

    def note_tokens(self, count: int) -> None:
        """Note new tokens of all sequences."""
        self._tokens += count

    def _book(self, seconds: float, sequences: int) -> None:
        count = self._sequences
        drafted = self._tried or self._resumes
        if not drafted and self._tokens == count == sequences:
            self._plain[count] = _averaged(self._plain.get(count, 0.0), seconds)
        if not self._plain:
            return
        plain = self._plain[min(self._plain, key=lambda known: abs(known - count))]
        worth = plain * self._tokens / count
        saved = _MOST_GIVEN * plain if self._saved is None else self._saved
        saved = max(saved, min(_MOST_GIVEN * plain, saved + _SHARE * worth))
        brought = max(worth - seconds, -_MOST_LOST * plain) if drafted else 0.0
        self._saved = min(_MOST_SAVED * plain, saved + brought)


def _averaged(before: float, newest: float) -> float:
    """Moving average of times, in which one that was held up counts little; 0 is none yet."""
    return newest if not before else (1 - _NEWEST) * before + _NEWEST * min(newest, 2 * before)
