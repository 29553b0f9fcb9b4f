"""Marker search in text that arrives in chunks."""

from __future__ import annotations

import re


class Markers:
    """A set of markers none of which has, after its first character, one that any of them begins with.

    So the end of a text can begin a marker only at its last such character.

    Args:
        markers: markers, at least one.

    Raises:
        ValueError: they are not of this form.
    """

    __slots__ = ("_firsts", "_markers", "find", "may_begin")

    def __init__(self, *markers: str) -> None:
        self._firsts = "".join(sorted({marker[0] for marker in markers}))
        if any(first in marker[1:] for marker in markers for first in self._firsts):
            raise ValueError(f"markers must have what one of them begins with nowhere else: {markers}")
        self._markers = markers
        self.find = re.compile("|".join(re.escape(marker) for marker in markers)).search
        """`find(text, position)`: the first marker from `position` on, as a match, or None."""
        self.may_begin = re.compile(f"[{re.escape(self._firsts)}]").search
        """`may_begin(text)`: the first character that begins a marker, as a match, or None."""

    def certain(self, text: str, position: int) -> int:
        """End of the text that cannot be part of a marker: the start of a partial marker, or `len(text)`.

        `text[position:]` contains no whole marker.
        """
        start = max(text.rfind(first, position) for first in self._firsts)
        if start < 0:
            return len(text)
        tail = text[start:]
        return start if any(marker.startswith(tail) for marker in self._markers) else len(text)
