"""Log-probabilities of a sequence, matched to the pieces of text that are sent.

Text is sent later than its tokens arrive: incomplete characters and possible stop strings are held back. The
log-probabilities of a token are sent with the piece in which its text begins, and never if a stop string cut it off.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from openai_bls.core.engine_types import Logprobs


class TokenLogprob(NamedTuple):
    """Log-probabilities of one token and its offset in the text."""

    token_id: int
    logprob: float | None
    """None for the first token of a prompt, which has no context."""
    top: list[tuple[int, float]]
    """(token id, log-probability) of the likeliest tokens at this place, the likeliest first."""
    offset: int
    """Characters of the choice's text before this token's own."""


class LogprobTrack:
    """Queue of one sequence's tokens whose text has not been sent yet."""

    def __init__(self) -> None:
        self._waiting: deque[TokenLogprob] = deque()

    def add(self, token_id: int, logprobs: Logprobs, place: int, offset: int) -> None:
        """Append a token.

        Args:
            token_id: the token.
            logprobs: log-probabilities of the token's delta.
            place: index of the token in them.
            offset: characters decoded before it.
        """
        top = list(zip(logprobs.top_token_ids[place], logprobs.top_logprobs[place], strict=True))
        self._waiting.append(TokenLogprob(token_id, logprobs.token_logprobs[place], top, offset))

    def take(self, sent: int) -> list[TokenLogprob]:
        """Remove and return the tokens that begin within the first `sent` characters."""
        taken = []
        while self._waiting and self._waiting[0].offset < sent:
            taken.append(self._waiting.popleft())
        return taken

    def take_all(self) -> list[TokenLogprob]:
        """Remove and return all tokens: the text has ended, with every token in it."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken


def of_prompt(token_ids: list[int], logprobs: Logprobs, offsets: list[int], start: int, end: int) -> list[TokenLogprob]:
    """Log-probabilities of a part of an echoed prompt.

    Args:
        token_ids: shape [n].
        logprobs: log-probabilities of the prompt's tokens from the second on, shape [n - 1].
        offsets: offsets of the tokens, of those before `end` at least.
        start: number of the first token of the part.
        end: number of the token after its last one.
    """
    found = [] if start else [TokenLogprob(token_ids[0], None, [], offsets[0])]
    for at in range(max(start, 1), end):
        # The first token has none.
        top = list(zip(logprobs.top_token_ids[at - 1], logprobs.top_logprobs[at - 1], strict=True))
        found.append(TokenLogprob(token_ids[at], logprobs.token_logprobs[at - 1], top, offsets[at]))
    return found
