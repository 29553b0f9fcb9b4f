"""Log-probabilities of a sequence, matched to the pieces of text that are sent.

Text goes out later than its tokens come: incomplete characters and possible stop strings are held back. A token's
log-probabilities go out with the piece in which its own text begins, and not at all if a stop string cut it off.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from openai_bls.core.engine_types import Logprobs


class TokenLogprob(NamedTuple):
    """A token's place in an answer."""

    token_id: int
    logprob: float | None
    """None for the first token of a prompt, which nothing foretells."""
    top: list[tuple[int, float]]
    """(token id, log-probability) of the likeliest tokens at this place, the likeliest first."""
    offset: int
    """Characters of the choice's text before this token's own."""


class LogprobTrack:
    """The tokens of one sequence whose text has not gone out yet."""

    def __init__(self) -> None:
        self._waiting: deque[TokenLogprob] = deque()

    def add(self, token_id: int, logprobs: Logprobs, place: int, offset: int) -> None:
        """A token came.

        Args:
            token_id: the token.
            logprobs: of the delta in which it came.
            place: the token's, in them.
            offset: characters decoded before it.
        """
        top = list(zip(logprobs.top_token_ids[place], logprobs.top_logprobs[place], strict=True))
        self._waiting.append(TokenLogprob(token_id, logprobs.token_logprobs[place], top, offset))

    def take(self, sent: int) -> list[TokenLogprob]:
        """The tokens that begin within the first `sent` characters, each told once."""
        taken = []
        while self._waiting and self._waiting[0].offset < sent:
            taken.append(self._waiting.popleft())
        return taken

    def take_all(self) -> list[TokenLogprob]:
        """All that wait: the text has ended, with every token in it."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken


def of_prompt(token_ids: list[int], logprobs: Logprobs, offsets: list[int]) -> list[TokenLogprob]:
    """An echoed prompt's tokens.

    Args:
        token_ids: shape [n].
        logprobs: of the tokens from the second on.
        offsets: shape [n].
    """
    first = TokenLogprob(token_ids[0], None, [], offsets[0])
    rest = zip(
        token_ids[1:],
        logprobs.token_logprobs,
        logprobs.top_token_ids,
        logprobs.top_logprobs,
        offsets[1:],
        strict=True,
    )
    return [
        first,
        *(
            TokenLogprob(token_id, logprob, list(zip(ids, values, strict=True)), offset)
            for token_id, logprob, ids, values, offset in rest
        ),
    ]
