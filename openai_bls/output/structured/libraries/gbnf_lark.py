"""Grammars in GBNF written as Lark for llguidance, or as a regular expression.

llguidance's lexer takes the longest match. So what is not recursive becomes one terminal, in which nothing is
ambiguous; llguidance's own `gbnf_to_lark` makes one of each literal and set, and names of rules collide there.
"""

from __future__ import annotations

import re
from functools import lru_cache

from openai_bls.output.structured import patterns
from openai_bls.output.structured.grammars import bounds
from openai_bls.output.structured.grammars.escape_lexing import lexable
from openai_bls.output.structured.grammars.gbnf import (
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
_MAX_INLINED = 8_000
_MAX_INLINED_DEPTH = 50

TERMINAL = "t-"
"""Beginning of the names of terminals."""

_GROUPS = re.compile(r"\\.|(\(\?:)|(\))|\[(?:\\.|[^\\\]])*(?:\]|\\?\Z)", re.DOTALL)


def lark(rules: dict[str, Node], root: str = "start", *, terminals: bool = False, escaped: bool = False) -> str:
    """The grammar in llguidance's form, one line per rule; the first one is called `root`.

    Args:
        rules: the grammar.
        root: name of its first rule, with which the names of the others begin.
        terminals: whether its terminals are strings, sets and the rules whose names begin with `TERMINAL`, and stay so:
            a lexer that takes the longest match would read others in another way. Else all that is regular becomes one.
        escaped: whether its texts are those of JSON strings, whose escapes `escape_lexing` tells apart.
    """
    inlined = _inlined(rules)
    if terminals and inlined["root"] is None:
        inlined = _of_terminals(inlined)
        if escaped:
            rules = lexable(rules, "root", lambda node: _is_terminal(node, inlined), TERMINAL)
            inlined = _of_terminals(_inlined(rules))
    else:
        terminals = False
    names = {name: f"{root}_{at}" for at, name in enumerate(rules)} | {"root": root}
    lines = []
    for name, node in rules.items():
        text = inlined[name]
        body = _lark(node, names, inlined, terminals) if text is None else slashed(text)
        lines.append(f"{names[name]}: {body}")
    return "\n".join(lines)


def _of_terminals(inlined: dict[str, str | None]) -> dict[str, str | None]:
    return {name: text if name.startswith(TERMINAL) else None for name, text in inlined.items()}


def _is_terminal(node: Node, inlined: dict[str, str | None]) -> bool:
    return isinstance(node, Literal | CharSet) or (isinstance(node, Rule) and inlined[node.name] is not None)


@lru_cache(maxsize=8)
def regex(text: str) -> str | None:
    """The regular expression that a grammar amounts to; None if it is recursive or long."""
    return _inlined(parse(text))["root"]


def _lark(node: Node, names: dict[str, str], inlined: dict[str, str | None], terminals: bool) -> str:
    text = _regex(node, inlined) if not terminals or _is_terminal(node, inlined) else None
    if text is not None:
        return slashed(text)
    match node:
        case Rule(name):
            return names[name]
        case Sequence(parts, choice):
            found = [_lark(part, names, inlined, terminals) for part in parts]
            return f"({' | '.join(found)})" if choice else " ".join(found) or '""'
        case Repeat(part, least, most):
            return f"({_lark(part, names, inlined, terminals)}){count(least, most)}"
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
    if text is None or len(text) <= _MAX_INLINED or isinstance(node, Literal | CharSet):
        return text
    return None


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
