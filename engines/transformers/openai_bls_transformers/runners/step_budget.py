"""Token budget of the steps that take prompts in while sequences decode, and the order of prompts.

A step lasts the longer, the more tokens it has, and every sequence that decodes waits for it. So the prompts of such a
step are cut to what fits into `max_step_ms`, by times that were measured when the engine started.

A long prompt ahead of short ones makes all of them wait, short ones ahead of a long one cost it little. So a prompt
counts as if it had come later by a multiple of the seconds that it takes, and none is overtaken without end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEAST_PROMPT_TOKENS = 64
"""Prompt tokens that every step takes in, however long it lasts, so that prompts come to an end."""


_SHORT_WAIT_S = 0.05
"""Seconds that a prompt may take so that sequences that decode wait for it in a few longer steps."""
_LONG_WAIT_S = 0.2
"""Seconds that prompts may take together before the time to first token counts for more than that between tokens."""
_PATIENCE = 3
"""Times the seconds that a prompt takes by which later ones may overtake it."""
_LONG_PATIENCE = 300
"""Value of `_PATIENCE` while prompts take more than `_LONG_WAIT_S` together: most are in time, at the cost of the
longest."""
_MOST_OVERTAKEN_S = 10.0


@dataclass(frozen=True)
class StepTimes:
    """Measured times of steps on this device."""

    seconds: Sequence[tuple[int, float]]
    """Tokens of a step and the seconds it takes, by rising numbers of tokens."""
    seconds_per_score: float
    """Seconds per pair of a query and a key, in all layers."""


@dataclass(frozen=True)
class StepBudget:
    """How many tokens a step may have.

    A step may last three times as long where several sequences wait for their first token, so that they do not wait for
    each other, or for a short prompt, twice as long for one that takes no more than `_LONG_WAIT_S` in all, and six
    times as long where the last of several would wait for more than that. Larger steps take less time per token.
    """

    times: StepTimes
    max_seconds: float

    @property
    def largest(self) -> int:
        """Tokens of the largest step with several prompts: in larger ones all would wait for the last of them."""
        return self.times.seconds[-1][0]

    def tokens(self, decoding: int, prompts: int, prompt_tokens: int, past: int) -> int:
        """Tokens of a step beside sequences that decode.

        Args:
            decoding: sequences with one new token each.
            prompts: sequences that wait for their first token.
            prompt_tokens: prompt tokens that are still to be taken in.
            past: tokens that the first prompt has in the cache.

        Returns:
            The most tokens, those of the decoding sequences included.
        """
        # A long prompt is long to its end, or those that decode would see its last steps.
        limit, wait = self.max_seconds, self._seconds(prompt_tokens + (past if prompts == 1 else 0))
        if prompts > 1 or wait <= _SHORT_WAIT_S:
            limit *= 6 if wait > _LONG_WAIT_S else 3
        elif wait <= _LONG_WAIT_S:
            limit *= 2
        found = least = decoding + LEAST_PROMPT_TOKENS
        for tokens, seconds in self.times.seconds:
            scores = max(0, tokens - decoding) * (past + tokens / 2)
            if tokens >= least and seconds + scores * self.times.seconds_per_score <= limit:
                found = tokens
        return found

    def overtaken(self, tokens: int, prompt_tokens: int) -> float:
        """Seconds for which prompts that come later may overtake one of `tokens`, while all take `prompt_tokens`."""
        patience = _LONG_PATIENCE if self._seconds(prompt_tokens) > _LONG_WAIT_S else _PATIENCE
        return min(_MOST_OVERTAKEN_S, patience * self._seconds(tokens))

    def _seconds(self, prompt_tokens: int) -> float:
        """Seconds that prompts take in steps of the largest size."""
        largest, seconds = self.times.seconds[-1]
        return prompt_tokens / largest * seconds
