"""GBNF grammars in other forms: as a regular expression, for xgrammar and for llguidance."""

from __future__ import annotations

import re

from openai_bls.output.structured import charsets
from openai_bls.output.structured.charsets import written
from openai_bls.output.structured.ebnf_tree import (
    CharSet,
    Choice,
    Literal,
    Node,
    Repeat,
    Rule,
    Sequence,
    dependencies_first,
)

# Of a rule that is written out where it is used.
_MAX_INLINED = 4_000
# Of groups in it; llguidance reads about five times as many.
_MAX_DEPTH = 50
_GROUPS = re.compile(r"\\.|(\(\?:)|(\))|\[(?:\\.|[^\\\]])*\]", re.DOTALL)


def regex(rules: dict[str, Node], name: str = "root") -> str | None:
    """The regular expression that a rule amounts to; None if it is recursive or long."""
    return _Inliner(rules).rule(name)


def gbnf(rules: dict[str, Node]) -> str:
    """The grammar in GBNF again, without negated sets: to xgrammar those have surrogates in them."""
    return "\n".join(f"{name} ::= {_gbnf(node)}" for name, node in rules.items())


def _gbnf(node: Node) -> str:
    match node:
        case Literal(text):
            return '"' + "".join(_escaped(ord(char)) for char in text) + '"'
        case CharSet(ranges):
            parts = (
                f"{_escaped(first)}-{_escaped(last)}" if first < last else _escaped(first) for first, last in ranges
            )
            return f"[{''.join(parts)}]"
        case Rule(name):
            return name
        case Sequence(parts):
            return " ".join(f"({_gbnf(part)})" for part in parts) or '""'
        case Choice(parts):
            return " | ".join(f"({_gbnf(part)})" for part in parts)
        case Repeat(part, least, most):
            return f"({_gbnf(part)}){{{least},{'' if most is None else most}}}"


def _escaped(point: int) -> str:
    text = chr(point)
    return text if text.isascii() and text.isalnum() else f"\\U{point:08x}"


def lark(rules: dict[str, Node]) -> str:
    """The grammar in llguidance's form. What is not recursive becomes one terminal, so that the lexer, which takes the
    longest match, has as few choices as there can be."""
    inliner = _Inliner(rules)
    names = {name: f"rule_{at}" for at, name in enumerate(rules)}
    names["root"] = "start"
    lines = []
    for name, node in rules.items():
        text = inliner.rule(name)
        lines.append(f"{names[name]}: {slashed(text) if text is not None else _lark(node, names, inliner)}")
    return "\n".join(lines)


def slashed(pattern: str) -> str:
    """A regular expression as Lark writes it."""
    return '""' if not pattern else "/" + pattern.replace("/", "\\/").replace("\n", "\\n") + "/"


def _lark(node: Node, names: dict[str, str], inliner: _Inliner) -> str:
    text = inliner.node(node)
    if text is not None:
        return slashed(text)
    match node:
        case Rule(name):
            return names[name]
        case Sequence(parts):
            return " ".join(_lark(part, names, inliner) for part in parts)
        case Choice(parts):
            return "(" + " | ".join(_lark(part, names, inliner) for part in parts) + ")"
        case Repeat(part, least, most):
            return f"({_lark(part, names, inliner)}){{{least},{'' if most is None else most}}}"
    raise AssertionError(node)  # literals and sets are regular


class _Inliner:
    """The rules that are regular expressions, written out where they are used."""

    def __init__(self, rules: dict[str, Node]) -> None:
        # None for what is recursive, long or deep.
        self._done: dict[str, str | None] = {}
        for name in dependencies_first(rules):
            text = self.node(rules[name])
            self._done[name] = text if text is not None and _depth(text) <= _MAX_DEPTH else None

    def rule(self, name: str) -> str | None:
        # A rule is used before it is done only where it uses itself by way of others.
        return self._done.get(name)

    def node(self, node: Node) -> str | None:
        text = self._written(node)
        return text if text is None or len(text) <= _MAX_INLINED else None

    def _written(self, node: Node) -> str | None:
        match node:
            case Literal(text):
                return literal(text)
            case CharSet(ranges):
                return written(ranges)
            case Rule(name):
                body = self.rule(name)
                return None if body is None else f"(?:{body})"
            case Sequence(parts) | Choice(parts):
                bodies = self._all(parts)
                if bodies is None:
                    return None
                return "".join(bodies) if isinstance(node, Sequence) else f"(?:{'|'.join(bodies)})"
            case Repeat(part, least, most):
                body = self.node(part)
                return None if body is None else f"(?:{body}){{{least},{'' if most is None else most}}}"

    def _all(self, parts: tuple[Node, ...]) -> list[str] | None:
        """All parts; None, and no more is looked at, if one cannot be written out or they grow too long."""
        found = []
        length = 0
        for part in parts:
            text = self.node(part)
            length += len(text or "")
            if text is None or length > _MAX_INLINED:
                return None
            found.append(text)
        return found


def _depth(pattern: str) -> int:
    """How deep groups are nested in a plain regular expression."""
    depth = deepest = 0
    for match in _GROUPS.finditer(pattern):
        depth += bool(match[1]) - bool(match[2])
        deepest = max(deepest, depth)
    return deepest


def literal(text: str) -> str:
    """A text as a regular expression."""
    return "".join(charsets.char(ord(char)) for char in text)
