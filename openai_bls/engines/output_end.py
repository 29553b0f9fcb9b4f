"""End of one output: at a stop token, a stop word or `max_tokens`, whichever comes first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from openai_bls.core.engine_types import EngineFinishReason, GenerationRequest


class End(NamedTuple):
    """End of an output with, or among, its new tokens."""

    delivered: int
    """New tokens before the end: those of a stop word are among them, a stop token is not."""
    reason: EngineFinishReason
    stop_token_id: int | None = None
    error: str | None = None


class OutputEnd:
    """Cursor over the tokens of one output, which looks for its end."""

    __slots__ = ("_longest", "_max_tokens", "_min_tokens", "_stops", "_tail", "_words", "count")

    def __init__(self, request: GenerationRequest) -> None:
        self._stops = frozenset(request.stop_token_ids)
        self._words = request.stop_words
        self._longest = max(map(len, self._words), default=0)
        self._tail: list[int] = []
        """Last tokens, as many as a stop word can span."""
        self._min_tokens, self._max_tokens = request.min_tokens, request.max_tokens
        self.count = 0
        """Tokens delivered so far."""

    @property
    def has_words(self) -> bool:
        """True if each token has to be looked at."""
        return self._longest > 0

    def is_stop(self, token_id: int) -> bool:
        """True if this is a stop token."""
        return token_id in self._stops

    def advance(self, new: Sequence[int]) -> End | None:
        """Take the next tokens; the end with or among them, or None if the output goes on. Not called after an end."""
        end = self._end(new)
        self.count += len(new) if end is None else end.delivered
        return end

    def _end(self, new: Sequence[int]) -> End | None:
        if self._longest:
            for at, token_id in enumerate(new):
                if token_id in self._stops:
                    return End(at, "stop", token_id)
                # Asked before there are `min_tokens`, too, as the tail has to go on.
                if self._completes_word(token_id) and self.count + at + 1 >= self._min_tokens:
                    return End(at + 1, "stop")
        elif not self._stops.isdisjoint(new):
            at = next(at for at, token_id in enumerate(new) if token_id in self._stops)
            return End(at, "stop", new[at])
        return End(len(new), "length") if self.count + len(new) >= self._max_tokens else None

    def _completes_word(self, token_id: int) -> bool:
        self._tail.append(token_id)
        del self._tail[: -self._longest]
        tail = tuple(self._tail)
        return any(tail[-len(word) :] == word for word in self._words)
