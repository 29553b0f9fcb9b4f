"""Rules of a grammar in the making, and what is rewritten in them so that every version of xgrammar can go by them.

Up to 0.1.20 a part that may be empty and comes any number of times, or a rule that begins with itself, makes xgrammar's
matcher recurse until the process ends (`cpp/grammar_matcher_base.cc`); later versions take very long over the first.
The one is rewritten, the other refused. Counts (`{2,5}`) are written out by some versions and not by others; here they
are rules. There is no `+`, which made two attempts of each repetition.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping

from openai_bls.output.structured import gbnf_writing, references
from openai_bls.output.structured.ebnf_tree import (
    CharSet,
    Choice,
    Literal,
    Node,
    Repeat,
    Rule,
    Sequence,
    mapped,
    rules_of,
)
from openai_bls.output.structured.errors import FormatError

EMPTY = Sequence(())
"""The empty text."""

_MAX_CHARACTERS = 1 << 18
"""As much as the engine of this project compiles. 20 tools with 10 properties each take 23,000, in Qwen3-Coder's form
46,000; over the latter xgrammar 0.2.8 takes some seconds for 131,000 tokens on two cores."""
# Copies in a row up to which they are written out.
_MAX_IN_LINE = 4


class Rules:
    """A grammar in the making.

    Args:
        current: for an xgrammar of 0.2 alone.
    """

    def __init__(self, *, current: bool = False) -> None:
        self._current = current
        self._rules: dict[str, Node] = {}
        self._shared: dict[Hashable, Rule] = {}
        self._due: list[tuple[Rule, Callable[[], Node]]] = []

    def reserve(self, hint: str) -> Rule:
        """A new rule, to be defined later.

        Args:
            hint: what its name begins with, lower-case letters.
        """
        rule = Rule(f"{hint}_{len(self._rules)}")
        self._rules[rule.name] = EMPTY
        return rule

    def define(self, rule: Rule, body: Node) -> Rule:
        """Say what a reserved rule stands for."""
        self._rules[rule.name] = body
        return rule

    def add(self, hint: str, body: Node) -> Rule:
        """A new rule for `body`; `body` itself if that is a rule already."""
        return body if isinstance(body, Rule) else self.define(self.reserve(hint), body)

    def once(self, key: Hashable, hint: str, make: Callable[[], Node]) -> Rule:
        """The rule for `key`, made when it is first asked for; `make` may ask for it again."""
        if key not in self._shared:
            self._shared[key] = self.reserve(hint)
            self.define(self._shared[key], make())
        return self._shared[key]

    def later(self, key: Hashable, hint: str, make: Callable[[], Node]) -> Rule:
        """As `once`, but `make` is called when all else is there: definitions may refer to one another in long
        chains."""
        if key not in self._shared:
            self._shared[key] = self.reserve(hint)
            self._due.append((self._shared[key], make))
        return self._shared[key]

    def text(self, root: Node) -> str:
        """The grammar whose outputs are those of `root`.

        Raises:
            FormatError: it holds what cannot be written for every version, or is too large.
        """
        self._rules["root"] = root
        while self._due:
            rule, make = self._due.pop()
            self.define(rule, make())
        _Loops(self).rewrite()
        if not self._current:
            self._refuse_left_recursion()
        _Counts(self).rewrite()
        for name in self._reached():
            self._rules[name] = gbnf_writing.apart(self._rules[name], self._digit)
        lines = []
        size = 0
        for name in self._reached():
            lines.append(f"{name} ::= {gbnf_writing.body(self._rules[name], current=self._current)}")
            size += len(lines[-1]) + 1
            if size > _MAX_CHARACTERS:
                raise FormatError(f"it is too large as one GBNF grammar: over {_MAX_CHARACTERS} characters")
        return "\n".join(lines)

    def _digit(self, char: str) -> Rule:
        return self.once(("digit", char), "digit", lambda: Literal(char))

    @property
    def bodies(self) -> dict[str, Node]:
        """By name."""
        return self._rules

    def _reached(self) -> list[str]:
        """The rules that are used, `root` first."""
        found = ["root"]
        seen = {"root"}
        for name in found:
            for other in rules_of(self._rules[name]):
                if other not in seen:
                    seen.add(other)
                    found.append(other)
        return found

    def _refuse_left_recursion(self) -> None:
        empty = _nullable(self._rules)
        first = {name: list(dict.fromkeys(_first(self._rules[name], empty))) for name in self._reached()}
        for group in references.circles(first):
            if len(group) > 1 or group[0] in first[group[0]]:
                raise FormatError(
                    "a rule or '$ref' that begins with itself takes structural tags, which this server's engine does "
                    "not have"
                )


def _first(node: Node, empty: Mapping[str, bool]) -> Iterable[str]:
    """The rules that may be tried before any character is read."""
    match node:
        case Rule(name):
            yield name
        case Sequence(parts):
            for part in parts:
                yield from _first(part, empty)
                if not _may_be_empty(part, empty):
                    return
        case Choice(parts):
            for part in parts:
                yield from _first(part, empty)
        case Repeat(part):
            yield from _first(part, empty)


def _may_be_empty(node: Node, empty: Mapping[str, bool]) -> bool:
    match node:
        case Literal(text):
            return not text
        case Rule(name):
            return empty.get(name, False)
        case Sequence(parts):
            return all(_may_be_empty(part, empty) for part in parts)
        case Choice(parts):
            return any(_may_be_empty(part, empty) for part in parts)
        case Repeat(part, least):
            return not least or _may_be_empty(part, empty)
    return False


def _nullable(rules: Mapping[str, Node]) -> dict[str, bool]:
    """Which rules may be empty."""
    users: dict[str, list[str]] = {}
    for name, node in rules.items():
        for other in set(rules_of(node)):
            users.setdefault(other, []).append(name)
    found: dict[str, bool] = {}
    waiting = list(rules)
    while waiting:
        name = waiting.pop()
        if not found.get(name) and _may_be_empty(rules[name], found):
            found[name] = True
            waiting += users.get(name, ())
    return found


class _Loops:
    """Repetitions of what may be empty, rewritten as repetitions of what of it is not."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._empty = _nullable(rules.bodies)

    def rewrite(self) -> None:
        # In the order of their making, those included that are made on the way.
        for name in (names := list(self._rules.bodies)):
            self._rules.bodies[name] = self._node(self._rules.bodies[name])
            names += list(self._rules.bodies)[len(names) :]

    def _node(self, node: Node) -> Node:
        match node:
            case Repeat(part, _, most) if _may_be_empty(part, self._empty):
                full = self._full(part)
                return EMPTY if full is None else Repeat(self._node(full), 0, most)
        return mapped(node, self._node)

    def _full(self, node: Node) -> Node | None:
        """A part without the empty text; None if it has no other."""
        if not _may_be_empty(node, self._empty):
            return node
        match node:
            case Rule(name):
                body = self._rules.bodies[name]
                return self._rules.once(("full", name), "full", lambda: self._full(body) or Choice(()))
            case Sequence((first, *rest)):
                then = Sequence(tuple(rest))
                found = [self._full(then)] if rest else []
                full = self._full(first)
                if full is not None:
                    found.append(Sequence((full, then)) if rest else full)
                return _one_of(found)
            case Choice(parts):
                return _one_of(self._full(part) for part in parts)
            case Repeat(part, least, most):
                full = self._full(part)
                least = 1 if _may_be_empty(part, self._empty) else max(least, 1)
                return None if full is None or most == 0 else Repeat(full, least, most)
        return None


def _one_of(found: Iterable[Node | None]) -> Node | None:
    parts = [part for part in found if part is not None]
    return Choice(tuple(parts)) if len(parts) > 1 else parts[0] if parts else None


class _Counts:
    """Repetitions, written with `*` and `?` alone."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def rewrite(self) -> None:
        for name, body in list(self._rules.bodies.items()):
            self._rules.bodies[name] = self._node(body)

    def _node(self, node: Node) -> Node:
        node = mapped(node, self._node)
        if not isinstance(node, Repeat) or (node.least == 0 and node.most in (None, 1)):
            return node
        part = node.part if isinstance(node.part, CharSet | Rule) else self._rules.add("each", node.part)
        copies = self._copies(part, node.least)
        if node.most is None:
            return Sequence((copies, Repeat(part, 0, None)))
        return Sequence((copies, self._at_most(part, node.most - node.least)))

    def _copies(self, part: Node, count: int) -> Node:
        if count <= _MAX_IN_LINE:
            return Sequence((part,) * count)
        half = self._rules.once(("copies", part, count // 2), "copies", lambda: self._copies(part, count // 2))
        return Sequence((half, half, *(part,) * (count % 2)))

    def _at_most(self, part: Node, count: int) -> Node:
        found: Node = EMPTY
        # One within another, so that at each place there is one way to go on, however many there are.
        for _ in range(count):
            found = Repeat(self._rules.add("more", Sequence((part, found))), 0, 1)
        return found
