"""Nearest name to one that does not exist: of commands, options, settings, files, models and engines' fields alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

_CHARACTERS_PER_MISTAKE = 3


def nearest(name: str, known: Collection[str]) -> str:
    """The name that was probably meant; empty if none is near.

    Of names that are equally near, one of the same letters is meant (`modle`: `model`, not `mode`), else one of the
    same length.
    """
    limit = max(1, len(name.strip("-")) // _CHARACTERS_PER_MISTAKE)
    near = [(mistakes, one) for one in known if one != name and (mistakes := _mistakes(name, one, limit)) <= limit]
    letters = Counter(name)
    return min(near, default=(0, ""), key=lambda pair: (pair[0], Counter(pair[1]) != letters, _gap(pair[1], name)))[1]


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Question that names the nearest; empty if none is near."""
    near = nearest(name, known)
    return f"did you mean {near}?" if near else ""


def meant_or_known(name: str, known: Collection[str]) -> str:
    """End of a sentence about a name that does not exist: the nearest, or all of them."""
    return did_you_mean(name, known) or f"known are {', '.join(known) or 'none'}"


def _gap(one: str, other: str) -> int:
    return abs(len(one) - len(other))


def _mistakes(one: str, other: str, limit: int) -> int:
    """Letters that were left out, added or changed, and neighbours that were swapped; more than `limit` is that."""
    if _gap(one, other) > limit:
        return limit + 1
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        before, last, row = row, before, [i]
        for j, wanted in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != wanted))
            if last and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
        if min(row) > limit:
            return limit + 1
    return row[-1]
