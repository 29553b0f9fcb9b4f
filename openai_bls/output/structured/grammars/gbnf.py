r"""Grammars in the GBNF dialect of EBNF (llama.cpp's, xgrammar's): parsed and checked.

::

    root  ::= expr ("," expr)*     # the whole output
    expr  ::= "(" expr ")" | [a-z]{1,8} | "\"" [^"\n]* "\""

A rule goes on until the next one begins. Literals and sets know the escapes `\n \r \t \\ \" \' \- \[ \] \^ \xHH \uHHHH
\UHHHHHHHH`. xgrammar's macros, lookaheads and rule options are not supported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from openai_bls.output.structured.errors import FormatError
from openai_bls.output.structured.grammars import bounds
from openai_bls.output.structured.grammars.bounds import Gates

_MAX_NESTING = 40
_MAX_RULES = 10_000
# States of the automaton, with counted repetitions written out.
_MAX_STATES = 20_000
# Rules and their parts within one another.
_MAX_DEPTH = 1_000

# No expression here can read the same text in two ways: what does takes time without end on a text that never fits.
_SPACE = re.compile(r"\s*(?:#[^\n]*\n\s*)*(?:#[^\n]*)?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_COUNT = re.compile(r"\{\s*(\d{1,6})\s*(?:(,)\s*(?:(\d{1,6})\s*)?)?\}")
_LARK = re.compile(r"^[^\S\n]*(?:%llguidance\b|start\s*:(?!:=))", re.MULTILINE)
_CHAR_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_SIMPLE = {"n": "\n", "r": "\r", "t": "\t", **{char: char for char in "\\\"'-[]^/"}}


@dataclass(frozen=True)
class Literal:
    """A text."""

    text: str


@dataclass(frozen=True)
class CharSet:
    """One character of a set, or none of them: inclusive ranges of code points."""

    ranges: tuple[tuple[int, int], ...]
    negated: bool


@dataclass(frozen=True)
class Rule:
    """A reference to a rule."""

    name: str


@dataclass(frozen=True)
class Sequence:
    """One part after another, or one of them."""

    parts: tuple[Node, ...]
    choice: bool = False


@dataclass(frozen=True)
class Repeat:
    """A part several times; with no `most` any number of times."""

    part: Node
    least: int
    most: int | None


Node = Literal | CharSet | Rule | Sequence | Repeat


def is_lark(text: str) -> bool:
    """True if a grammar is written in Lark's form."""
    return "::=" not in text or _LARK.search(text) is not None


@lru_cache(maxsize=8)
def parse(text: str) -> dict[str, Node]:
    """A grammar's rules by name; not to be changed.

    Raises:
        FormatError: it is none, nothing matches it, or it is too large or too deep.
    """
    rules = _Parser(text).parse()
    _check(rules)
    return rules


def uses(node: Node) -> Iterator[str]:
    """The rules that a part uses, in their order, some more than once."""
    match node:
        case Rule(name):
            yield name
        case Sequence(parts):
            for part in parts:
                yield from uses(part)
        case Repeat(part):
            yield from uses(part)


def graph(rules: dict[str, Node]) -> dict[str, list[str]]:
    """The rules that each rule uses."""
    return {name: sorted(set(uses(node))) for name, node in rules.items()}


def slashed(pattern: str) -> str:
    """A regular expression as Lark writes it."""
    return '""' if not pattern else "/" + pattern.replace("/", "\\/").replace("\n", "\\n") + "/"


def count(least: int, most: int | None) -> str:
    """A repetition's sign."""
    return f"{{{least},{'' if most is None else most}}}"


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def parse(self) -> dict[str, Node]:
        rules: dict[str, Node] = {}
        self._skip()
        while self._at < len(self._text):
            head = self._head()
            if head is None:
                raise self._error("a rule begins with its name and '::='")
            name, self._at = head
            if name in rules:
                raise self._error(f"there are two rules {name!r}")
            if len(rules) == _MAX_RULES:
                raise FormatError(f"the grammar is too large: over {_MAX_RULES} rules")
            self._skip()
            rules[name] = self._choice(0)
        return rules

    def _error(self, what: str) -> FormatError:
        line = self._text.count("\n", 0, self._at) + 1
        return FormatError(f"bad grammar, line {line}: {what}")

    def _head(self) -> tuple[str, int] | None:
        """The name of the rule that begins here, and where its body does; None if none begins."""
        name = _NAME.match(self._text, self._at)
        if name is None:
            return None
        sign = self._after_space(name.end())
        return (name[0], sign + len("::=")) if self._text.startswith("::=", sign) else None

    def _skip(self) -> None:
        self._at = self._after_space(self._at)

    def _after_space(self, place: int) -> int:
        match = _SPACE.match(self._text, place)
        return match.end() if match else place

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _choice(self, depth: int) -> Node:
        if depth > _MAX_NESTING:
            raise self._error("nested too deeply")
        parts = [self._sequence(depth)]
        while self._peek() == "|":
            self._at += 1
            self._skip()
            parts.append(self._sequence(depth))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts), choice=True)

    def _sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self._peek() not in ("", "|", ")") and self._head() is None:
            parts.append(self._repeated(self._part(depth)))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _part(self, depth: int) -> Node:
        char = self._peek()
        if char == '"':
            return self._literal()
        if char == "[":
            return self._set()
        if char == "(":
            self._at += 1
            self._skip()
            if self._peek() == "=":
                raise self._error("lookaheads are not supported")
            node = self._choice(depth + 1)
            if self._peek() != ")":
                raise self._error("missing ')'")
            self._at += 1
            return node
        name = _NAME.match(self._text, self._at)
        if name is None:
            raise self._error(f"unexpected {char!r}")
        self._at = name.end()
        if self._peek() in ("(", "["):
            raise self._error(f"{name[0]}{self._peek()}...: macros and rule options are not supported")
        return Rule(name[0])

    def _repeated(self, node: Node) -> Node:
        char = self._peek()
        if char and char in "*+?":
            self._at += 1
            node = Repeat(node, 1 if char == "+" else 0, 1 if char == "?" else None)
        elif char == "{":
            match = _COUNT.match(self._text, self._at)
            if match is None:
                raise self._error("a count is {n}, {n,} or {n,m}")
            least = int(match[1])
            most = int(match[3]) if match[3] else None if match[2] else least
            if most is not None and most < least:
                raise self._error("a count whose end comes before its beginning")
            self._at = match.end()
            node = Repeat(node, least, most)
        self._skip()
        if char and char in "*+?{" and self._peek() and self._peek() in "*+?{":
            raise self._error("two counts in a row")
        return node

    def _char(self) -> str:
        """The character at hand, escaped or not."""
        char = self._peek()
        if char in ("", "\n", "\r"):
            raise self._error("a line ends within a literal or a set")
        if char != "\\":
            self._at += 1
        else:
            match = _CHAR_ESCAPE.match(self._text, self._at)
            code = match[1] or match[2] or match[3] if match else None
            if match is None or (code is None and match[4] not in _SIMPLE) or int(code or "0", 16) > 0x10FFFF:
                raise self._error(f"unknown escape {self._text[self._at : self._at + 2]!r}")
            self._at = match.end()
            char = chr(int(code, 16)) if code else _SIMPLE[match[4]]
        if "\ud800" <= char <= "\udfff":
            raise self._error("half a surrogate pair")
        return char

    def _literal(self) -> Node:
        self._at += 1
        chars = []
        while self._peek() != '"':
            chars.append(self._char())
        self._at += 1
        return Literal("".join(chars))

    def _set(self) -> Node:
        self._at += 1
        negated = self._peek() == "^"
        self._at += negated
        ranges = []
        while self._peek() != "]":
            first = last = self._char()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                last = self._char()
            if last < first:
                raise self._error("bad range in a set")
            ranges.append((ord(first), ord(last)))
        self._at += 1
        if not ranges or (negated and _is_everything(ranges)):
            raise self._error("a set that nothing matches")
        return CharSet(tuple(ranges), negated)


def _is_everything(ranges: list[tuple[int, int]]) -> bool:
    after = 0
    for first, last in sorted(ranges):
        # Surrogates are no characters.
        if first > after and not 0xD800 <= after <= first - 1 <= 0xDFFF:
            return False
        after = max(after, last + 1)
    return after > 0x10FFFF


def _check(rules: dict[str, Node]) -> None:
    """Refuse a grammar that is not whole, that nothing matches, or that is too large."""
    if "root" not in rules:
        raise FormatError("bad grammar: it has no rule 'root'")
    used = graph(rules)
    for name, others in used.items():
        for other in others:
            if other not in rules:
                raise FormatError(f"bad grammar: rule {name!r} uses {other!r}, which is not defined")
    if bounds.depth({name: _height(node) for name, node in rules.items()}, used) > _MAX_DEPTH:
        raise FormatError(f"the grammar is nested too deeply: over {_MAX_DEPTH} levels with the rules that it uses")
    endless = sorted(rules.keys() - matchable(rules))
    if endless:
        raise FormatError(f"bad grammar: rule {endless[0]!r} never comes to an end, hence nothing matches it")
    sizes: dict[str, int] = {}
    for name in bounds.dependencies_first(used):
        sizes[name] = _size(rules[name], sizes)
    if max(sizes.values()) > _MAX_STATES:
        raise FormatError(f"the grammar is too large: over {_MAX_STATES} states")


def _height(node: Node) -> int:
    match node:
        case Sequence(parts):
            return 1 + max(map(_height, parts), default=0)
        case Repeat(part):
            return 1 + _height(part)
    return 1


def _size(node: Node, sizes: dict[str, int]) -> int:
    """States of a part's automaton, about, with the rules that it uses written out, once where they are recursive."""
    match node:
        case Rule(name):
            return sizes.get(name, 1)
        case Sequence(parts):
            return 1 + sum(_size(part, sizes) for part in parts)
        case Repeat(part, least, most):
            return _size(part, sizes) * max(least, most or 1)
        case Literal(text):
            return len(text) + 1
        case CharSet(ranges):
            return len(ranges)


def matchable(rules: dict[str, Node], *, empty: bool = False) -> set[str]:
    """The rules that match some finite text; with `empty`, those that match the empty text."""
    gates = Gates()
    of_rule = {name: gates.any_of(()) for name in rules}

    def gate(node: Node) -> int:
        match node:
            case Rule(name):
                return of_rule[name]
            case Sequence(parts, choice):
                found = [gate(part) for part in parts]
                return gates.any_of(found) if choice else gates.all_of(found)
            case Repeat(part, least) if least:
                return gate(part)
            case Literal(text) if text and empty:
                return gates.never
            case CharSet() if empty:
                return gates.never
        return gates.always

    for name, node in rules.items():
        gates.add(of_rule[name], gate(node))
    opened = gates.settle()
    return {name for name in rules if opened[of_rule[name]]}
