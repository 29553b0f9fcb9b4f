"""Collection of whole answers: their growing texts, and the count of what a writer keeps of them."""

from __future__ import annotations

import sys
from collections.abc import Callable

_MOST_PIECES = 128
"""Pieces of a text until they are joined: by itself each takes some 60 bytes, whatever its length."""


class GrowingText:
    """Text that grows by pieces."""

    __slots__ = ("_blocks", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        """Latest pieces."""
        self._blocks: list[str] = []

    def add(self, piece: str) -> int:
        """Add a piece; bytes of the pieces that are joined with it, which are none most of the time."""
        self.pieces.append(piece)
        return self.join() if len(self.pieces) >= _MOST_PIECES else 0

    def join(self) -> int:
        """Join the pieces that came since the last time; bytes that they take."""
        if not self.pieces:
            return 0
        block = "".join(self.pieces)
        self.pieces.clear()
        self._blocks.append(block)
        return sys.getsizeof(block)

    @property
    def whole(self) -> str:
        """All of the text."""
        return "".join([*self._blocks, *self.pieces])


def _uncounted(size: int) -> None:
    """No count of what is kept."""


class Collector:
    """Writer that keeps all of an answer until its end."""

    _hold: Callable[[int], None] = staticmethod(_uncounted)

    def count_by(self, count: Callable[[int], None]) -> None:
        """Have `count` called with the number of bytes that are kept, as they come."""
        self._hold = count

    def _grow(self, text: GrowingText, piece: str) -> None:
        """Add a piece to a text, and count what is joined."""
        if size := text.add(piece):
            self._hold(size)
