"""Finds markers in a text that comes in pieces."""

from __future__ import annotations

import re


class Markers:
    """Strings to look for. All begin with the same character, which none has a second time.

    So the only place where the end of a text can begin a marker is its last such character.

    Args:
        markers: at least one.

    Raises:
        ValueError: they are not of this form.
    """

    __slots__ = ("_markers", "find", "first")

    def __init__(self, *markers: str) -> None:
        self.first = markers[0][0]
        """The character that all of them begin with."""
        if any(marker.rfind(self.first) != 0 for marker in markers):
            raise ValueError(f"markers must begin with the same character and have it once: {markers}")
        self._markers = markers
        self.find = re.compile("|".join(re.escape(marker) for marker in markers)).search
        """`find(text, place)`: the first marker from `place` on, as a match, or None."""

    def certain(self, text: str, place: int) -> int:
        """Where the longest end of `text[place:]` that may begin a marker starts; the end of the text if none does.

        No marker may be in `text[place:]` as a whole.
        """
        start = text.rfind(self.first, place)
        if start < 0:
            return len(text)
        tail = text[start:]
        return start if any(marker.startswith(tail) for marker in self._markers) else len(text)
