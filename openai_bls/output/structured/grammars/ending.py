"""Where the text of a recursive grammar ends, with what follows it: told by its terminals, or refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from openai_bls.output.structured.errors import FormatError, shown
from openai_bls.output.structured.grammars import gbnf
from openai_bls.output.structured.grammars.gbnf import CharSet, Literal, Node, Repeat, Rule
from openai_bls.output.structured.grammars.pruning import may_be_empty


def check(rules: dict[str, Node], excludes: Sequence[str], ends: Sequence[str]) -> None:
    """Refuse a grammar whose texts may hold what they must not, or whose last terminal may go on with the end.

    Args:
        rules: a recursive grammar.
        excludes: strings that no text may hold.
        ends: texts that may follow.

    Raises:
        FormatError: it cannot be told from the terminals alone.
    """
    for text in excludes:
        # What stands first besides white space, which many grammars have.
        char = (text.strip() or text)[0]
        if any(_holds(node, char) for node in rules.values()):
            raise FormatError(
                f"texts of a recursive or large grammar that may hold {shown(char)} cannot be kept free of "
                f"{shown(text)}, which ends them in this model's form of tool calls"
            )
    empty = gbnf.matchable(rules, empty=True)
    seen: set[str] = set()
    waiting: list[Node] = [Rule("root")]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Literal | CharSet | Repeat) and any(_holds(node, end[0]) for end in ends if end):
            raise FormatError(
                f"texts of a recursive or large grammar that may end with what holds {shown(ends[0][0])} cannot be "
                f"told from {shown(ends[0])} after them, as it is in this model's form of tool calls"
            )
        if isinstance(node, Rule):
            if node.name in seen:
                continue
            seen.add(node.name)
            node = rules[node.name]
        waiting += _last(node, empty)


def _last(node: Node, empty: set[str]) -> Iterator[Node]:
    """Parts that a part may end with."""
    match node:
        case gbnf.Sequence(parts, choice):
            for part in reversed(parts):
                yield part
                if not choice and not may_be_empty(part, empty):
                    return
        case Repeat(part):
            yield part


def _holds(node: Node, char: str) -> bool:
    """True if a part, its rules aside, may have a character."""
    match node:
        case Literal(text):
            return char in text
        case CharSet(ranges, negated):
            return any(first <= ord(char) <= last for first, last in ranges) != negated
        case gbnf.Sequence(parts):
            return any(_holds(part, char) for part in parts)
        case Repeat(part):
            return _holds(part, char)
    return False
