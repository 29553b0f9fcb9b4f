"""Marker search in text that arrives in chunks."""

from __future__ import annotations

import re


class Markers:
    """A set of markers that begin with the same character, which none has a second time.

    So the end of a text can begin a marker only at its last such character.

    Args:
        markers: markers, at least one.

    Raises:
        ValueError: they are not of this form.
    """

    __slots__ = ("_markers", "find", "first")

    def __init__(self, *markers: str) -> None:
        self.first = markers[0][0]
        """The character that all markers begin with."""
        if any(marker.rfind(self.first) != 0 for marker in markers):
            raise ValueError(f"markers must begin with the same character and have it once: {markers}")
        self._markers = markers
        self.find = re.compile("|".join(re.escape(marker) for marker in markers)).search
        """`find(text, position)`: the first marker from `position` on, as a match, or None."""

    def certain(self, text: str, position: int) -> int:
        """End of the text that cannot be part of a marker: the start of a partial marker, or `len(text)`.

        `text[position:]` contains no whole marker.
        """
        start = text.rfind(self.first, position)
        if start < 0:
            return len(text)
        tail = text[start:]
        return start if any(marker.startswith(tail) for marker in self._markers) else len(text)
