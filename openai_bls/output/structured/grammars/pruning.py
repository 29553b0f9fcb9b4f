"""Grammars without what nothing matches, and the parts of grammars that may be empty."""

from __future__ import annotations

from openai_bls.output.structured.grammars.gbnf import Literal, Node, Repeat, Rule, Sequence, matchable, uses

NOTHING: Node = Sequence((), choice=True)
"""A part that no text matches."""


def pruned(rules: dict[str, Node], root: str) -> dict[str, Node]:
    """The rules that `root` comes to use, without the alternatives that nothing matches; none if nothing matches it."""
    known = matchable(rules)
    if root not in known:
        return {}
    found: dict[str, Node] = {}
    waiting = [root]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = _without_nothing(rules[name], known)
            waiting += uses(found[name])
    return found


def _without_nothing(node: Node, known: set[str]) -> Node:
    match node:
        case Rule(name):
            return node if name in known else NOTHING
        case Sequence(parts, choice):
            kept = [_without_nothing(part, known) for part in parts]
            if choice:
                kept = [part for part in kept if part != NOTHING]
            elif NOTHING in kept:
                return NOTHING
            return kept[0] if len(kept) == 1 else Sequence(tuple(kept), choice)
        case Repeat(part, least, most):
            inner = _without_nothing(part, known)
            if inner == NOTHING:
                return NOTHING if least else Literal("")
            return Repeat(inner, least, most)
    return node


def may_be_empty(node: Node, empty: set[str]) -> bool:
    """True if a part matches the empty text.

    Args:
        node: the part.
        empty: rules that do.
    """
    match node:
        case Literal(text):
            return not text
        case Rule(name):
            return name in empty
        case Sequence(parts, choice):
            return (any if choice else all)(may_be_empty(part, empty) for part in parts)
        case Repeat(part, least):
            return not least or may_be_empty(part, empty)
    return False
