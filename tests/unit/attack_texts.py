"""Texts that make a regular expression slow, if any do: a part of what it matches, repeated, with an end that fails.

An expression needs more than linear time where it can match a repeated text in several ways, or begin at each of its
places and walk to its end. Both show with a text of `before + repeated * n + after`, where the pieces are taken from
the expression: its literals, members of its sets, and what it matches up to some place.
"""

from __future__ import annotations

import itertools
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

# The parser of the standard library: there is no other public one.
if sys.version_info >= (3, 11):
    from re import _constants as sre  # type: ignore[attr-defined]
    from re import _parser  # type: ignore[attr-defined]
else:
    import sre_constants as sre
    import sre_parse as _parser

_CATEGORIES = {sre.CATEGORY_DIGIT: "5", sre.CATEGORY_SPACE: " ", sre.CATEGORY_WORD: "a"}
_OTHERS = {sre.CATEGORY_NOT_DIGIT: "a", sre.CATEGORY_NOT_SPACE: "a", sre.CATEGORY_NOT_WORD: " "}
_MOST_ATOMS = 7
"""Different characters that are tried."""
LENGTHS = (20, 28, 40, 56, 80, 112, 160, 240, 400, 1500)
"""Lengths of attacks, so near to each other that what is exponential is found before it takes minutes."""
ENDS = ("", "\0", "\n\0")


class Attack(NamedTuple):
    """A text of any length."""

    before: str
    repeated: str
    after: str

    def text(self, length: int) -> str:
        """The text with a middle of about `length` characters."""
        return self.before + self.repeated * max(1, length // len(self.repeated)) + self.after


def attacks(pattern: str, flags: int = 0) -> list[Attack]:
    """Attacks on an expression."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = _parser.parse(pattern, flags)
    pieces = [piece for piece in _pieces(tree) if piece]
    atoms = list(dict.fromkeys("".join(pieces) + "\n"))[:_MOST_ATOMS]
    runs = {"".join(pieces[start:end]) for start in range(len(pieces)) for end in range(start + 2, start + 5)}
    repeated = [*atoms, *("".join(pair) for pair in itertools.permutations(atoms, 2)), *sorted(runs)]
    befores = list(dict.fromkeys("".join(pieces[:end]) for end in range(len(pieces) + 1)))[:6]
    return [Attack(*parts) for parts in itertools.product(befores, dict.fromkeys(repeated), ENDS)]


def _pieces(tree: Any) -> Iterator[str]:
    """Pieces of a text that the expression matches, and of the other ways that it has: all branches, one by one."""
    for kind, value in tree:
        if kind is sre.LITERAL:
            yield chr(value)
        elif kind is sre.NOT_LITERAL:
            yield "a" if value != ord("a") else "b"
        elif kind is sre.ANY:
            yield "x"
        elif kind is sre.IN:
            yield from _members(value)
        elif kind is sre.BRANCH:
            for branch in value[1]:
                yield from _pieces(branch)
        elif kind is sre.SUBPATTERN:
            yield from _pieces(value[-1])
        elif kind in (sre.MAX_REPEAT, sre.MIN_REPEAT, getattr(sre, "POSSESSIVE_REPEAT", None)):
            yield from _pieces(value[2])
        elif kind is getattr(sre, "ATOMIC_GROUP", None):
            yield from _pieces(value)
        elif kind in (sre.ASSERT, sre.ASSERT_NOT):
            yield from _pieces(value[1])


def _members(members: Any) -> Iterator[str]:
    """Some members of a set; of one that excludes, others."""
    found: list[str] = []
    for kind, value in members:
        if kind is sre.LITERAL:
            found.append(chr(value))
        elif kind is sre.RANGE:
            found.append(chr(value[0]))
        elif kind is sre.CATEGORY:
            found.append((_CATEGORIES | _OTHERS).get(value, "a"))
    if members[0][0] is sre.NEGATE:
        yield next(one for one in "ax5 \0" if one not in found)
    else:
        yield from found[:3]


def as_python(pattern: str) -> str:
    """A JavaScript expression with Python's names for its parts, as far as attacks need them."""
    named = re.sub(r"\(\?<([A-Za-z])", r"(?P<\1", pattern)
    return re.sub(r"\\p\{\w+\}", "x", named).replace("[[", "[\\[")
