"""Search of markers of any form in text that arrives in chunks; `markers` is faster, for those of one form."""

from __future__ import annotations

from typing import NamedTuple


class Found(NamedTuple):
    """A marker in a text."""

    start: int
    marker: str


class AnyMarkers:
    """A set of markers of any form, which may hold their first character again, as `<|open|>think<|sep|>`.

    Args:
        markers: markers, none of them empty.
    """

    __slots__ = ("_first", "_longest", "_markers")

    def __init__(self, *markers: str) -> None:
        self._markers = markers
        self._first = frozenset(marker[0] for marker in markers)
        self._longest = max(map(len, markers), default=0)

    def find(self, text: str) -> Found | None:
        """The first marker in `text`, of those that begin there the one that was given first."""
        places = ((text.find(marker), at) for at, marker in enumerate(self._markers))
        start, at = min(((start, at) for start, at in places if start >= 0), default=(-1, 0))
        return Found(start, self._markers[at]) if start >= 0 else None

    def certain(self, text: str) -> int:
        """End of a text without a whole marker that cannot be part of one."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[start] in self._first and any(marker.startswith(text[start:]) for marker in self._markers):
                return start
        return len(text)
