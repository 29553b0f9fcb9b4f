"""Grammars in GBNF written as Lark for llguidance, or as a regular expression.

llguidance's lexer takes the longest match. So what is not recursive becomes one terminal, in which nothing is
ambiguous; llguidance's own `gbnf_to_lark` makes one of each literal and set, and names of rules collide there.
"""

from __future__ import annotations

import re
from functools import lru_cache

from openai_bls.output.structured import bounds, patterns
from openai_bls.output.structured.gbnf import (
    CharSet,
    Literal,
    Node,
    Repeat,
    Rule,
    Sequence,
    count,
    graph,
    parse,
    slashed,
)

# Characters, and groups within one another, of a rule that is written out where it is used.
_MAX_INLINED = 4_000
_MAX_INLINED_DEPTH = 50

_GROUPS = re.compile(r"\\.|(\(\?:)|(\))|\[(?:\\.|[^\\\]])*\]", re.DOTALL)


def lark(rules: dict[str, Node], root: str = "start") -> str:
    """The grammar in llguidance's form, one line per rule; the first one is called `root`."""
    inlined = _inlined(rules)
    names = {name: f"{root}_{at}" for at, name in enumerate(rules)} | {"root": root}
    return "\n".join(
        f"{names[name]}: {slashed(text) if (text := inlined[name]) is not None else _lark(node, names, inlined)}"
        for name, node in rules.items()
    )


@lru_cache(maxsize=8)
def regex(text: str) -> str | None:
    """The regular expression that a grammar amounts to; None if it is recursive or long."""
    return _inlined(parse(text))["root"]


def _lark(node: Node, names: dict[str, str], inlined: dict[str, str | None]) -> str:
    text = _regex(node, inlined)
    if text is not None:
        return slashed(text)
    match node:
        case Rule(name):
            return names[name]
        case Sequence(parts, choice):
            found = [_lark(part, names, inlined) for part in parts]
            return f"({' | '.join(found)})" if choice else " ".join(found)
        case Repeat(part, least, most):
            return f"({_lark(part, names, inlined)}){count(least, most)}"
    raise AssertionError(node)  # literals and sets are regular


def _inlined(rules: dict[str, Node]) -> dict[str, str | None]:
    """The regular expression of each rule, with those that it uses written out; None if it is recursive or long."""
    found: dict[str, str | None] = {}
    for name in bounds.dependencies_first(graph(rules)):
        text = _regex(rules[name], found)
        found[name] = text if text is not None and _nesting(text) <= _MAX_INLINED_DEPTH else None
    return found


def _regex(node: Node, inlined: dict[str, str | None]) -> str | None:
    text = _written(node, inlined)
    return text if text is None or len(text) <= _MAX_INLINED else None


def _written(node: Node, inlined: dict[str, str | None]) -> str | None:
    match node:
        case Literal(text):
            return patterns.literal(text)
        case CharSet(ranges, negated):
            return patterns.charset(list(ranges), negated=negated)
        case Rule(name):
            # A rule is used before it is there only where it uses itself by way of others.
            body = inlined.get(name)
            return None if body is None else f"(?:{body})"
        case Repeat(part, least, most):
            body = _regex(part, inlined)
            return None if body is None else f"(?:{body}){count(least, most)}"
        case Sequence(parts, choice):
            found: list[str] = []
            length = 0
            for part in parts:
                body = _regex(part, inlined)
                length += len(body or "")
                if body is None or length > _MAX_INLINED:
                    return None
                found.append(body)
            return f"(?:{'|'.join(found)})" if choice else "".join(found)


def _nesting(pattern: str) -> int:
    """Groups within one another in a regular expression of ours."""
    depth = deepest = 0
    for match in _GROUPS.finditer(pattern):
        depth += bool(match[1]) - bool(match[2])
        deepest = max(deepest, depth)
    return deepest
