r"""Escaped grammars for a lexer that takes the longest match and never goes back.

Where a terminal may go on with one escape, and what comes after it begins with another, as in `"a" /[a-z\n]*/ "\""`,
such a lexer has taken the backslash for the terminal before it sees which escape it is. So each terminal has a form in
which the next backslash is its last character, and one whose own first backslash is taken already: the lexer always
ends a terminal where an unescaped one would end.

Each rule of the grammar comes in four forms, by whether a backslash is taken before it, and whether it takes the one
after it. Parts that are one terminal are as they were, with a backslash less at the start or more at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from openai_bls.output.structured.grammars.gbnf import CharSet, Literal, Node, Repeat, Rule, Sequence, matchable
from openai_bls.output.structured.grammars.json_escape import ESCAPE
from openai_bls.output.structured.grammars.pruning import NOTHING, may_be_empty, pruned

_EMPTY = Literal("")
_BACKSLASH = Literal(ESCAPE)


def lexable(rules: dict[str, Node], root: str, is_terminal: Callable[[Node], bool], prefix: str) -> dict[str, Node]:
    """The same language by rules whose terminals end where the lexer ends them.

    Args:
        rules: an escaped grammar, in which a backslash begins each escape and is followed by what tells them apart.
        root: name of the rule that is the whole text.
        is_terminal: whether a part is one terminal.
        prefix: beginning of the names of terminals.
    """
    return pruned(_Forms(rules, is_terminal, prefix).made(root), root)


class _Forms:
    def __init__(self, rules: dict[str, Node], is_terminal: Callable[[Node], bool], prefix: str) -> None:
        self._rules = rules
        self._is_terminal = is_terminal
        self._prefix = prefix
        self._empty = matchable(rules, empty=True)
        self._made: dict[str, Node] = {}
        self._waiting: list[tuple[str, Node, bool, bool]] = []
        self._names: dict[tuple[Node, bool, bool], str] = {}

    def made(self, root: str) -> dict[str, Node]:
        """All forms that one form of `root` comes to use, which has its name, and the terminals."""
        self._made = {root: self._rule(Rule(root), False, False)}
        while self._waiting:
            name, node, before, after = self._waiting.pop()
            self._made[name] = self._form(node, before, after)
        return {**self._made, **{name: node for name, node in self._rules.items() if name not in self._made}}

    def _rule(self, node: Node, before: bool, after: bool) -> Node:
        """A rule for one form of a part."""
        if self._is_terminal(node):
            return self._form(node, before, after)
        key = (node, before, after)
        if key not in self._names:
            self._names[key] = f"form-{len(self._names)}"
            body = self._rules[node.name] if isinstance(node, Rule) else node
            self._waiting.append((self._names[key], body, before, after))
        return Rule(self._names[key])

    def _form(self, node: Node, before: bool, after: bool) -> Node:
        """One form of a part.

        Args:
            node: the part.
            before: whether the backslash that it begins with is taken.
            after: whether it takes the backslash that follows.
        """
        if self._is_terminal(node):
            return self._terminal(node, before, after)
        match node:
            case Rule():
                return self._rule(node, before, after)
            case Sequence(parts, True):
                return _any(self._form(part, before, after) for part in parts)
            case Sequence(parts):
                return self._row(parts, before, after)
            case Repeat(part, least, most):
                return self._repeat(part, least, most, before, after)
        raise AssertionError(node)  # literals and sets are terminals

    def _terminal(self, node: Node, before: bool, after: bool) -> Node:
        if not before and not after:
            return node
        key = (node, before, after)
        if key not in self._names:
            begun = self._derived(node) if before else node
            found = _row(begun, _BACKSLASH) if after else begun
            self._names[key] = f"{self._prefix}form-{len(self._names)}"
            self._made[self._names[key]] = found
        # Nothing at all leaves the backslash before it taken.
        rest = [_EMPTY] if before and after and may_be_empty(node, self._empty) else []
        return _any([Rule(self._names[key]), *rest])

    def _row(self, parts: tuple[Node, ...], before: bool, after: bool) -> Node:
        if not parts:
            return _EMPTY if before == after else NOTHING
        if len(parts) == 1:
            return self._form(parts[0], before, after)
        # By halves: what comes after each part, as a rule for each, would be as much as their number times itself.
        middle = len(parts) // 2
        return self._pair(_sequence(parts[:middle]), _sequence(parts[middle:]), before, after)

    def _repeat(self, part: Node, least: int, most: int | None, before: bool, after: bool) -> Node:
        """One form of a repetition, by halves too: a rule for each number would be as many rules within one another."""
        nothing = _EMPTY if before == after and not least else NOTHING
        if most == 0:
            return nothing
        if most == 1:
            return _any([self._rule(part, before, after), nothing])
        if least == most:
            half = least // 2
            return self._pair(_times(part, half), _times(part, least - half), before, after)
        if least:
            rest = Repeat(part, 0, None if most is None else most - least)
            return self._pair(_times(part, least), rest, before, after)
        if most is None:
            return _any([self._pair(part, Repeat(part, 0, None), before, after), nothing])
        half = (most + 1) // 2
        fewer = self._rule(Repeat(part, 0, half - 1), before, after) if half > 1 else nothing
        return _any([fewer, self._pair(_times(part, half), Repeat(part, 0, most - half), before, after)])

    def _pair(self, first: Node, second: Node, before: bool, after: bool) -> Node:
        return _any(
            _row(self._rule(first, before, between), self._rule(second, between, after)) for between in (False, True)
        )

    def _derived(self, node: Node) -> Node:
        """What may follow a backslash that a part begins with."""
        match node:
            case Literal(text):
                return Literal(text[1:]) if text.startswith(ESCAPE) else NOTHING
            case CharSet(ranges, negated):
                held = any(first <= ord(ESCAPE) <= last for first, last in ranges)
                return _EMPTY if held != negated else NOTHING
            case Rule(name):
                return self._derived(self._rules[name])
            case Sequence(parts, True):
                return _any(map(self._derived, parts))
            case Sequence(parts):
                # The first part with text has the backslash.
                found: list[Node] = []
                for at, part in enumerate(parts):
                    tail = Sequence(parts[at + 1 :]) if at + 1 < len(parts) else _EMPTY
                    found.append(_row(self._derived(part), tail))
                    if not may_be_empty(part, self._empty):
                        break
                return _any(found)
            case Repeat(part, least, most):
                rest = Repeat(part, max(least - 1, 0), None if most is None else most - 1)
                return _row(self._derived(part), _EMPTY if most == 1 else rest)
        raise AssertionError(node)


def _sequence(parts: tuple[Node, ...]) -> Node:
    return parts[0] if len(parts) == 1 else Sequence(parts)


def _times(part: Node, number: int) -> Node:
    return part if number == 1 else Repeat(part, number, number)


def _row(first: Node, second: Node) -> Node:
    if NOTHING in (first, second):
        return NOTHING
    kept = tuple(part for part in (first, second) if part != _EMPTY)
    return kept[0] if len(kept) == 1 else Sequence(kept)


def _any(parts: Iterable[Node]) -> Node:
    kept = tuple(dict.fromkeys(part for part in parts if part != NOTHING))
    return kept[0] if len(kept) == 1 else Sequence(kept, choice=True)
