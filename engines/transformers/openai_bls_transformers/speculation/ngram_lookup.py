"""Lookup of n-grams in a growing sequence of tokens: where it has been before, it may go on as it did then."""

from __future__ import annotations

from collections.abc import Sequence

_NEAR = 64
"""Tokens behind a place in which `nearest` looks."""


class NgramLookup:
    """Index of a sequence's n-grams of several lengths; a token costs the same wherever it is added."""

    def __init__(self, shortest: int, longest: int, tokens: Sequence[int] = ()) -> None:
        """Index `tokens`.

        Args:
            shortest: tokens of the shortest n-gram, at least 1.
            longest: tokens of the longest.
            tokens: the beginning of the sequence.
        """
        self.tokens: list[int] = []
        self.shortest = shortest
        # For each length, the longest first: n-gram → index of the token after its latest occurrence.
        self._followers: list[tuple[int, dict[tuple[int, ...], int]]] = [
            (length, {}) for length in range(longest, shortest - 1, -1)
        ]
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens to the end of the sequence."""
        known = len(self.tokens)
        self.tokens += tokens
        end = len(self.tokens)
        for length, followers in self._followers:
            start = max(length, known)
            if start >= end:
                continue
            columns = (self.tokens[start - length + i : end - length + i] for i in range(length))
            followers.update(zip(zip(*columns, strict=True), range(start, end), strict=True))

    def find(self, tail: Sequence[int]) -> int | None:
        """Index of the token after the latest occurrence of the longest n-gram that ends `tail`; None if no token of
        the sequence follows any of them."""
        for length, followers in self._followers:
            if len(tail) >= length:
                found = followers.get(tuple(tail[-length:]))
                if found is not None:
                    return found
        return None

    def nearest(self, tail: Sequence[int], start: int) -> int | None:
        """Index of the token after the first occurrence of the shortest n-gram that ends `tail`, from `start` on and
        not far from it."""
        length = self.shortest
        wanted = list(tail[-length:])
        for end in range(max(start, length), min(start + _NEAR, len(self.tokens))):
            if self.tokens[end - length : end] == wanted:
                return end
        return None

    def continuation(self, start: int, count: int) -> list[int]:
        """`count` tokens from index `start` on; beyond its end, the sequence is taken to repeat them."""
        period = len(self.tokens) - start
        return [self.tokens[start + i % period] for i in range(count)]
