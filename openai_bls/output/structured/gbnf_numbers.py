"""Integers between bounds, as parts of a grammar."""

from __future__ import annotations

from openai_bls.output.structured.ebnf_tree import CharSet, Choice, Literal, Node, Repeat, Sequence
from openai_bls.output.structured.errors import FormatError

DIGIT = CharSet(((0x30, 0x39),))
LEADING = CharSet(((0x31, 0x39),))
"""A digit that a number of several may begin with."""


def integers(low: int | None, high: int | None) -> Node:
    """The integers from `low` to `high`, both included, as JSON writes them; None for a bound is no bound.

    Raises:
        FormatError: there are none.
    """
    if low is None and high is None:
        signed = Sequence((Repeat(Literal("-"), 0, 1), LEADING, Repeat(DIGIT, 0, None)))
        return Choice((Literal("0"), signed))
    parts: list[Node] = []
    if low is None or low < 0:
        parts += _positive(1 if high is None else max(1, -high), None if low is None else -low, Literal("-"))
    if high is None or high >= 0:
        least = 0 if low is None else max(0, low)
        parts += [Literal("0")] if least == 0 else []
        parts += _positive(max(least, 1), high, None)
    if not parts:
        raise FormatError("no number lies between the bounds of an integer")
    return Choice(tuple(parts))


def _positive(low: int, high: int | None, sign: Node | None) -> list[Node]:
    """The alternatives from `low`, at least 1, to `high`, by their numbers of digits."""
    digits = len(str(low))
    if high is not None and high < low:
        return []
    if high is not None and len(str(high)) == digits:
        found = [_same_length(str(low), str(high))]
    else:
        found = [_same_length(str(low), "9" * digits)]
        if high is None:
            found.append(Sequence((LEADING, Repeat(DIGIT, digits, None))))
        else:
            longest = len(str(high))
            if longest - digits > 1:
                found.append(Sequence((LEADING, Repeat(DIGIT, digits, longest - 2))))
            found.append(_same_length("1" + "0" * (longest - 1), str(high)))
    return [part if sign is None else Sequence((sign, part)) for part in found]


def _same_length(low: str, high: str) -> Node:
    """From `low` to `high`, which have as many digits."""
    if low == high:
        return Literal(low)
    rest = len(low) - 1
    if low[0] == high[0]:
        return Sequence((Literal(low[0]), _same_length(low[1:], high[1:])))
    first, last = int(low[0]), int(high[0])
    parts: list[Node] = []
    if low[1:].strip("0"):
        parts.append(Sequence((Literal(low[0]), _same_length(low[1:], "9" * rest))))
        first += 1
    if high[1:].strip("9"):
        parts.append(Sequence((Literal(high[0]), _same_length("0" * rest, high[1:]))))
        last -= 1
    if first <= last:
        parts.append(Sequence((CharSet(((0x30 + first, 0x30 + last),)), *(DIGIT,) * rest)))
    return Choice(tuple(parts))
