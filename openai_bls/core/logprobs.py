"""Log-probabilities of a sequence, matched to the pieces of text that are sent, and those of its prompt.

Text is sent later than its tokens arrive: incomplete characters and possible stop strings are held back. The
log-probabilities of a token are sent with the piece in which its text begins, and never if a stop string cut it off.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from openai_bls.core.engine_types import Logprobs, PromptLogprobs

BLOCK_BYTES = 128 * 1024
"""Bytes of a block of a prompt's log-probabilities, or one row if that is larger."""
_NUMBER_BYTES = 4

Row = tuple[float, list[tuple[int, float]]]
"""Log-probability of a token, and as `TokenLogprob.top`."""


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


def packed(own: npt.NDArray[Any], top_token_ids: npt.NDArray[Any], top_logprobs: npt.NDArray[Any]) -> PromptLogprobs:
    """Log-probabilities of a prompt's tokens from the second on.

    Args:
        own: shape [n], of the tokens themselves.
        top_token_ids: shape [n, k], the likeliest tokens at each place, the likeliest first.
        top_logprobs: shape [n, k], theirs.
    """
    top = top_token_ids.shape[1]
    width = 1 + 2 * top
    rows = max(1, BLOCK_BYTES // (_NUMBER_BYTES * width))
    blocks = []
    for start in range(0, len(own), rows):
        part = slice(start, start + rows)
        block = np.empty((len(own[part]), width), np.float32)
        block[:, 0] = own[part]
        block.view(np.int32)[:, 1 : 1 + top] = top_token_ids[part]
        block[:, 1 + top :] = top_logprobs[part]
        blocks.append(block.tobytes())
    return PromptLogprobs(top, blocks)


def row_count(logprobs: PromptLogprobs) -> int:
    """Number of tokens whose log-probabilities they are."""
    return sum(map(len, logprobs.blocks)) // (_NUMBER_BYTES * (1 + 2 * logprobs.top))


def rows_of(logprobs: PromptLogprobs) -> Iterator[Row]:
    """The rows, in the order of the prompt.

    Raises:
        struct.error: a block does not hold whole rows.
    """
    top = logprobs.top
    form = struct.Struct(f"=f{top}i{top}f")
    for block in logprobs.blocks:
        for own, *rest in form.iter_unpack(block):
            yield own, list(zip(rest[:top], rest[top:], strict=True))


def of_prompt(
    token_ids: list[int], rows: Iterator[Row], offsets: list[int], start: int, end: int
) -> list[TokenLogprob]:
    """Log-probabilities of a part of an echoed prompt.

    Args:
        token_ids: shape [n].
        rows: rows of the tokens from the second on, those of earlier parts taken out.
        offsets: offsets of the tokens, of those before `end` at least.
        start: number of the first token of the part.
        end: number of the token after its last one.
    """
    found = [] if start else [TokenLogprob(token_ids[0], None, [], offsets[0])]
    for at in range(max(start, 1), end):
        logprob, top = next(rows)
        found.append(TokenLogprob(token_ids[at], logprob, top, offsets[at]))
    return found
