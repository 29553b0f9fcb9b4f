"""Stop words of one sequence: token sequences that end its output, matched token by token."""

from __future__ import annotations

from collections.abc import Sequence


class StopWords:
    """Matcher of stop words across steps.

    Args:
        words: token ids of each word.
    """

    __slots__ = ("_longest", "_tail", "_words")

    def __init__(self, words: Sequence[tuple[int, ...]]) -> None:
        self._words = words
        self._longest = max((len(word) for word in words), default=0)
        self._tail: list[int] = []

    def __bool__(self) -> bool:
        return self._longest > 0

    def push(self, token_id: int) -> bool:
        """Take the next token; whether it completes a word. For every token, in order."""
        self._tail.append(token_id)
        del self._tail[: -self._longest]
        tail = tuple(self._tail)
        return any(tail[-len(word) :] == word for word in self._words)
