"""A regular expression as read, and how it is written for a whole text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from openai_bls.output.structured import charsets, skips
from openai_bls.output.structured.errors import FormatError
from openai_bls.output.structured.skips import Skips

Side = Literal["open", "anchored", "inside"]
"""What stands before or behind a part: anything that a search skips, an end of the text, or other parts."""


@dataclass
class Item:
    """Something with a plain form of its own, or an anchor, or a group without a quantifier."""

    text: str = ""
    anchor: str = ""
    group: Tree | None = None
    size: int = 1
    """About how many states its automaton has, with counted repetitions written out."""
    skips: Skips = skips.ONE

    def anchored(self) -> bool:
        """Whether there is an anchor anywhere inside."""
        return bool(self.anchor) or (self.group is not None and self.group.anchored())


@dataclass
class Tree:
    """Alternatives, each a sequence."""

    branches: list[list[Item]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """As of an `Item`."""
        return sum(item.size for branch in self.branches for item in branch) + len(self.branches)

    @property
    def skips(self) -> Skips:
        """As of an `Item`."""
        return skips.one_of(skips.in_turn(item.skips for item in branch) for branch in self.branches)

    def anchored(self) -> bool:
        """Whether there is an anchor anywhere inside."""
        return any(item.anchored() for branch in self.branches for item in branch)

    def rendered(self, start: Side, end: Side) -> str:
        """The plain form.

        Raises:
            FormatError: an anchor stands where it can never hold.
        """
        return "|".join(_rendered(branch, start, end) for branch in self.branches)


def _rendered(items: list[Item], start: Side, end: Side) -> str:
    first, last = 0, len(items)
    if start != "inside":
        while first < last and items[first].anchor == "^":
            first += 1
            start = "anchored"
    if end != "inside":
        while first < last and items[last - 1].anchor == "$":
            last -= 1
            end = "anchored"
    items = items[first:last]
    parts = []
    if start == "open" and not (items and items[0].anchored()):
        parts.append(f"{charsets.ANY}*")
        start = "anchored"
    closing = ""
    if end == "open" and not (items and items[-1].anchored()):
        closing = f"{charsets.ANY}*"
        end = "anchored"
    for at, item in enumerate(items):
        if item.anchor:
            raise FormatError(f"{item.anchor!r} can stand only where the text begins or ends")
        if item.group is None:
            parts.append(item.text)
            continue
        before: Side = start if at == 0 else "inside"
        behind: Side = end if at == len(items) - 1 else "inside"
        parts.append(f"(?:{item.group.rendered(before, behind)})")
    return "".join(parts) + closing
