"""How many parts of an expression may be left out one after another.

xgrammar looks at every way to go on from each place of its automata: with 20 optional parts in a row it takes half a
second for a large vocabulary, with 100 half a minute. Between two parts that must come there is no more than one way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

MAX_XGRAMMAR = 20
"""In a row, for xgrammar. llguidance looks at places when it comes to them."""
_LARGE = 10**6


class Skips(NamedTuple):
    """Of a part."""

    empty: bool = False
    """It may be left out altogether."""
    head: int = 0
    """In a row at its beginning,"""
    tail: int = 0
    """at its end,"""
    most: int = 0
    """and anywhere in it, at most. Alternatives of any length that come again and again count as well, as any may
    follow any."""
    loops: int = 0
    """How many parts of any length there are to choose from."""


ONE = Skips()
"""Of a part that must come."""
NOTHING = Skips(True)
"""Of the empty text."""


def in_turn(parts: Iterable[Skips]) -> Skips:
    """Of one part after another."""
    found = NOTHING
    for part in parts:
        head = found.head + part.head if found.empty else found.head
        tail = part.tail + found.tail if part.empty else part.tail
        most = max(found.most, part.most, found.tail + part.head, head, tail)
        found = Skips(found.empty and part.empty, head, tail, most, max(found.loops, part.loops))
    return found


def one_of(parts: Iterable[Skips]) -> Skips:
    """Of alternatives."""
    found = list(parts) or [NOTHING]
    empty = any(part.empty for part in found)
    least = int(empty and len(found) > 1)
    head, tail, most = (max(least, *(part[at] for part in found)) for at in (1, 2, 3))
    return Skips(empty, head, tail, most, sum(part.loops for part in found))


def repeated(part: Skips, least: int, most: int | None) -> Skips:
    """Of a part several times; with no `most` any number of times."""
    times = min(most or max(least, 1), _LARGE)
    loops = max(part.loops, int(most is None))
    if part.empty:
        run = min(part.most * times, _LARGE) + (not least)
        head = tail = longest = run
    else:
        head, tail = part.head + (not least), part.tail + (not least)
        longest = max(part.most, part.tail + part.head if times > 1 or most is None else 0) + (not least)
    if times > 1 or most is None:
        longest = max(longest, part.loops)
    return Skips(part.empty or not least, head, tail, longest, loops)


def of_format(node: dict[str, Any], known: Mapping[tuple[str, str], Skips]) -> Skips:  # noqa: PLR0911
    """Of a checked format.

    Args:
        node: it.
        known: of the expressions and grammars in it, by type and text.
    """
    match node["type"]:
        case "regex":
            return known["regex", node["pattern"]]
        case "grammar":
            return known["grammar", node["grammar"]]
        case "any_text":
            return repeated(ONE, 0, None)
        case "sequence":
            return in_turn(of_format(part, known) for part in node["elements"])
        case "or":
            return one_of(of_format(part, known) for part in node["elements"])
        case "optional" | "star" | "plus" | "repeat" as kind:
            least = node.get("min", 1 if kind == "plus" else 0)
            most = node.get("max", 1 if kind == "optional" else -1)
            return repeated(of_format(node["content"], known), least, None if most == -1 else most)
        case "tag":
            begin, end = (ONE if node[key] else NOTHING for key in ("begin", "end"))
            return in_turn([begin, of_format(node["content"], known), end])
        case "triggered_tags" | "tags_with_separator":
            return repeated(one_of(of_format(tag, known) for tag in node["tags"]), 0, None)
    return ONE
