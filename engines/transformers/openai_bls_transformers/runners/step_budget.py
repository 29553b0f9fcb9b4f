"""Token budget of the steps that take prompts in while sequences decode, and the order of prompts.

A step lasts the longer, the more tokens it has, and every sequence that decodes waits for it. So the prompts of such a
step are cut to what fits into `max_step_ms`, by times that were measured when the engine started. Few steps may be
longer.

A long prompt ahead of short ones makes all of them wait, short ones ahead of a long one cost it little. So a prompt
counts as if it had come later by a multiple of the seconds that it takes, and none is overtaken without end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

LEAST_PROMPT_TOKENS = 64
"""Prompt tokens that every step takes in, however long it lasts, so that prompts come to an end."""

_LONG_FACTOR = 6
"""Times `max_step_ms` that a long step may last."""
_STEPS_PER_LONG = 120
"""Steps for each that may be long: with fewer than one in a hundred the 99th percentile of the time between tokens is
still that of the other steps."""
_MOST_LONG = 3
"""Long steps that may be saved up: as many as the longest prompts take."""
_SHORT_WAIT_S = 0.05
"""Seconds that a prompt may take without a long step."""
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


@dataclass
class StepBudget:
    """How many tokens a step may have.

    A step with prompts may last three times as long as `max_seconds`, or no longer than that for one prompt that takes
    more than `_LONG_WAIT_S`. It may last `_LONG_FACTOR` times as long where the last of several prompts would wait for
    more than `_LONG_WAIT_S`. One step in `_STEPS_PER_LONG` may do so, too, where one prompt takes more than
    `_SHORT_WAIT_S`: the 99th percentile of the time to first token is that of such prompts.
    """

    times: StepTimes
    max_seconds: float
    _long_steps: float = field(default=_MOST_LONG, init=False)
    """Long steps that may be taken now."""

    @property
    def largest(self) -> int:
        """Tokens of the largest step with several prompts: in larger ones all would wait for the last of them."""
        return self.times.seconds[-1][0]

    def count_step(self) -> None:
        """Count a step, whatever is in it."""
        self._long_steps = min(_MOST_LONG, self._long_steps + 1 / _STEPS_PER_LONG)

    def tokens(self, decoding: int, prompts: int, prompt_tokens: int, past: int, longest: int) -> int:
        """Tokens of the next step beside sequences that decode.

        Args:
            decoding: sequences with one new token each.
            prompts: sequences that wait for their first token.
            prompt_tokens: prompt tokens that are still to be taken in.
            past: tokens that the first prompt has in the cache.
            longest: tokens of the longest prompt, those in the cache included.

        Returns:
            The most tokens, those of the decoding sequences included.
        """
        # A long prompt is long to its end, or those that decode would see its last steps.
        wait = self._seconds(prompt_tokens + (past if prompts == 1 else 0))
        if wait > _LONG_WAIT_S:
            return self._fitting(decoding, prompt_tokens, past, _LONG_FACTOR if prompts > 1 else 1)
        found = self._fitting(decoding, prompt_tokens, past, 3)
        if self._long_steps >= 1 and self._seconds(min(prompt_tokens, longest)) > _SHORT_WAIT_S:
            longer = self._fitting(decoding, prompt_tokens, past, _LONG_FACTOR)
            if longer > found:
                self._long_steps -= 1
                return longer
        return found

    def _fitting(self, decoding: int, prompt_tokens: int, past: int, factor: int) -> int:
        """Tokens of a step of at most `factor` times `max_seconds`: all that wait, or as many per second as can be."""
        found = least = decoding + LEAST_PROMPT_TOKENS
        most_per_second = 0.0
        for tokens, seconds in self.times.seconds:
            scores = max(0, tokens - decoding) * (past + tokens / 2)
            if tokens < least or seconds + scores * self.times.seconds_per_score > factor * self.max_seconds:
                continue
            if tokens - decoding >= prompt_tokens:
                return tokens
            # Kernels come in waves: a step of 896 tokens may take nearly as long as one of 1,024.
            per_second = (tokens - decoding) / seconds
            if per_second > most_per_second:
                found, most_per_second = tokens, per_second
        return found

    def overtaken(self, tokens: int, prompt_tokens: int) -> float:
        """Seconds for which prompts that come later may overtake one of `tokens`, while all take `prompt_tokens`."""
        patience = _LONG_PATIENCE if self._seconds(prompt_tokens) > _LONG_WAIT_S else _PATIENCE
        return min(_MOST_OVERTAKEN_S, patience * self._seconds(tokens))

    def _seconds(self, prompt_tokens: int) -> float:
        """Seconds that prompts take in steps of the largest size."""
        largest, seconds = self.times.seconds[-1]
        return prompt_tokens / largest * seconds
