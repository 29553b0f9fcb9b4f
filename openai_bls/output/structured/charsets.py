"""Sets of characters, as sorted ranges of code points, and how regular expressions write them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, lru_cache

Ranges = tuple[tuple[int, int], ...]
"""Inclusive, ascending, with gaps between them; without the surrogates, which are no characters."""

_LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
_ESCAPED = frozenset(r"\.+*?()|[]{}^$-")
_NAMED = {0x0A: r"\n", 0x0D: r"\r", 0x09: r"\t"}
# Doubled in a set they are operators to Rust; xgrammar knows no escapes of them but by number.
_NUMBERED = frozenset("&~")


def normal(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The same set in normal form."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(_characters(ranges)):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def _characters(ranges: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    low, high = _SURROGATES
    for first, last in ranges:
        if first < low:
            yield first, min(last, low - 1)
        if last > high:
            yield max(first, high + 1), last


def complement(ranges: Ranges) -> Ranges:
    """All other characters."""
    gaps = []
    at = 0
    for first, last in ranges:
        if at < first:
            gaps.append((at, first - 1))
        at = last + 1
    if at <= _LAST:
        gaps.append((at, _LAST))
    return normal(gaps)


def _matching(pattern: str) -> Ranges:
    """The characters that match an expression of Python's, which has a `+` at its end. No letters and digits are
    beyond the first four planes."""
    text = "".join(chr(point) for point in range(0x40000))
    return normal((match.start(), match.end() - 1) for match in re.finditer(pattern, text))


DIGITS: Ranges = ((0x30, 0x39),)
WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
SPACE: Ranges = ((0x09, 0x0D), (0x20, 0x20))
LINE_ENDS: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
# Every character that one of Python and ECMAScript takes for white space.
WIDE_SPACE: Ranges = (
    *((0x09, 0x0D), (0x1C, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
)


CLASSES = "dDwWsS"
"""The letters of the classes: digits, word characters, white space, and all but these."""


@cache
def common(letter: str) -> Ranges:
    """What a class stands for in every dialect."""
    match letter:
        case "d":
            return DIGITS
        case "w":
            return WORD
        case "s":
            return SPACE
    return complement(wide(letter.lower()))


@cache
def wide(letter: str) -> Ranges:
    """What a class stands for in any dialect. Of letters and digits it looks at much of Unicode, once."""
    match letter:
        case "d":
            return _matching(r"\d+")
        case "w":
            return _matching(r"\w+")
        case "s":
            return WIDE_SPACE
    return complement(common(letter.lower()))


@lru_cache(maxsize=256)
def written(ranges: Ranges) -> str:
    """A set that is not empty, as a regular expression that Rust, Python and xgrammar read alike.

    Never as a negated one: to xgrammar those have surrogates in them, which are no UTF-8.
    """
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return char(ranges[0][0])
    parts = (char(first) if first == last else f"{char(first)}-{char(last)}" for first, last in ranges)
    return f"[{''.join(parts)}]"


def char(point: int) -> str:
    """One character, in a set or outside."""
    text = chr(point)
    if text in _ESCAPED:
        return "\\" + text
    if point in _NAMED:
        return _NAMED[point]
    return f"\\x{point:02x}" if point < 0x20 or 0x7F <= point < 0xA0 or text in _NUMBERED else text


ANY = written(complement(()))
