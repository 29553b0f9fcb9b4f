"""Marker search in text that arrives in chunks."""

from __future__ import annotations

import re


class Markers:
    """A set of markers, none of which is a part of another.

    Args:
        markers: markers, none of them empty; without any, nothing is found.

    Raises:
        ValueError: they are not of this form.
    """

    __slots__ = ("_firsts", "_longest", "_markers", "_once", "find", "may_begin")

    def __init__(self, *markers: str) -> None:
        self._firsts = "".join(sorted({marker[0] for marker in markers}))
        if any(one in other for one in markers for other in markers if one != other):
            raise ValueError(f"no marker may be a part of another: {markers}")
        self._markers = markers
        self._longest = max(map(len, markers), default=0)
        # Then the end of a text can begin a marker only at its last such character.
        self._once = not any(first in marker[1:] for marker in markers for first in self._firsts)
        # Without markers: what matches nothing.
        self.find = re.compile("|".join(re.escape(marker) for marker in markers) or "(?!)").search
        """`find(text, position)`: the first marker from `position` on, as a match, or None."""
        self.may_begin = re.compile(f"[{re.escape(self._firsts)}]" if markers else "(?!)").search
        """`may_begin(text)`: the first character that begins a marker, as a match, or None."""

    def certain(self, text: str, position: int = 0) -> int:
        """End of the text that cannot be part of a marker: the start of a partial marker, or `len(text)`.

        `text[position:]` contains no whole marker.
        """
        if self._once:
            start = max((text.rfind(first, position) for first in self._firsts), default=-1)
            return start if start >= 0 and self._begins(text[start:]) else len(text)
        for start in range(max(position, len(text) - self._longest + 1), len(text)):
            if text[start] in self._firsts and self._begins(text[start:]):
                return start
        return len(text)

    def _begins(self, tail: str) -> bool:
        return any(marker.startswith(tail) for marker in self._markers)
