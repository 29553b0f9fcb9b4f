"""A grammar as read: what rules are made of, and what can be said of them without a text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from openai_bls.output.structured import references, skips
from openai_bls.output.structured.charsets import Ranges
from openai_bls.output.structured.errors import FormatError
from openai_bls.output.structured.gates import Gates
from openai_bls.output.structured.skips import Skips

# Of the automaton, with counted repetitions written out.
_MAX_STATES = 20_000
# llguidance recurses into rules: from some 3,000 levels on its stack (8 MiB) runs over, which ends the process.
_MAX_DEPTH = 1_000


@dataclass(frozen=True)
class Literal:
    """A text."""

    text: str


@dataclass(frozen=True)
class CharSet:
    """One character of a set."""

    ranges: Ranges


@dataclass(frozen=True)
class Rule:
    """What a rule stands for."""

    name: str


@dataclass(frozen=True)
class Sequence:
    """One part after another."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    """One of several."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    """A part several times; with no `most` any number of times."""

    part: Node
    least: int
    most: int | None


Node = Literal | CharSet | Rule | Sequence | Choice | Repeat


def rules_of(node: Node) -> Iterable[str]:
    """The rules that a part uses, in their order, some more than once."""
    match node:
        case Rule(name):
            yield name
        case Sequence(parts) | Choice(parts):
            for part in parts:
                yield from rules_of(part)
        case Repeat(part):
            yield from rules_of(part)


def mapped(node: Node, change: Callable[[Node], Node]) -> Node:
    """The node with something else in the place of each of its own parts."""
    match node:
        case Sequence(parts):
            return Sequence(tuple(map(change, parts)))
        case Choice(parts):
            return Choice(tuple(map(change, parts)))
        case Repeat(part, least, most):
            return Repeat(change(part), least, most)
    return node


def check(rules: dict[str, Node]) -> None:
    """Refuse a grammar that is not whole, that nothing matches, or that is too large.

    Raises:
        FormatError: so it is.
    """
    if "root" not in rules:
        raise FormatError("bad grammar: it has no rule 'root'")
    for name, node in rules.items():
        for other in sorted(set(rules_of(node))):
            if other not in rules:
                raise FormatError(f"bad grammar: rule {name!r} uses {other!r}, which is not defined")
    if references.depth({name: _height(node) for name, node in rules.items()}, _uses(rules)) > _MAX_DEPTH:
        raise FormatError(f"the grammar is nested too deeply: over {_MAX_DEPTH} levels with the rules that it uses")
    endless = _endless(rules)
    if endless:
        raise FormatError(f"bad grammar: rule {endless[0]!r} never comes to an end, hence nothing matches it")
    sizes: dict[str, int] = {}
    for name in dependencies_first(rules):
        sizes[name] = _size(rules[name], sizes)
    if max(sizes.values()) > _MAX_STATES:
        raise FormatError(f"the grammar is too large: over {_MAX_STATES} states")


def dependencies_first(rules: dict[str, Node]) -> list[str]:
    """The rules' names, each after those of all rules that it uses; where they use one another, after some of them."""
    return references.dependencies_first(_uses(rules))


def _uses(rules: dict[str, Node]) -> dict[str, list[str]]:
    return {name: sorted(set(rules_of(node))) for name, node in rules.items()}


def _height(node: Node) -> int:
    match node:
        case Sequence(parts) | Choice(parts):
            return 1 + max(map(_height, parts), default=0)
        case Repeat(part):
            return 1 + _height(part)
    return 1


def _size(node: Node, sizes: dict[str, int]) -> int:
    """About how large a part's automaton is, with the rules that it uses written out, once where they are recursive.

    Args:
        node: the part.
        sizes: of the rules that it uses, but for those that use it in turn.
    """
    match node:
        case Rule(name):
            return sizes.get(name, 1)
        case Sequence(parts) | Choice(parts):
            return 1 + sum(_size(part, sizes) for part in parts)
        case Repeat(part, least, most):
            return _size(part, sizes) * max(least, most or 1)
        case Literal(text):
            return len(text) + 1
        case CharSet(ranges):
            return len(ranges)


def _endless(rules: dict[str, Node]) -> list[str]:
    """The rules that never come to an end, by name."""
    gates = Gates()
    of_rule = {name: gates.any_of(()) for name in rules}
    for name, node in rules.items():
        gates.add(of_rule[name], _gate(node, gates, of_rule))
    ends = gates.settle()
    return sorted(name for name in rules if not ends[of_rule[name]])


def _gate(node: Node, gates: Gates, of_rule: dict[str, int]) -> int:
    """A gate that is open if the part has a text that ends."""
    match node:
        case Rule(name):
            return of_rule[name]
        case Sequence(parts):
            return gates.all_of(_gate(part, gates, of_rule) for part in parts)
        case Choice(parts):
            return gates.any_of(_gate(part, gates, of_rule) for part in parts)
        case Repeat(part, least) if least:
            return _gate(part, gates, of_rule)
    return gates.always


def skips_of(rules: dict[str, Node]) -> Skips:
    """How many parts may be left out in a row, anywhere in a grammar."""
    found: dict[str, Skips] = {}
    for name in dependencies_first(rules):
        found[name] = _skips(rules[name], found)
    root = found["root"]
    return root._replace(most=max(one.most for one in found.values()))


def _skips(node: Node, of_rule: dict[str, Skips]) -> Skips:
    match node:
        case Rule(name):
            return of_rule.get(name, skips.ONE)
        case Sequence(parts):
            return skips.in_turn(_skips(part, of_rule) for part in parts)
        case Choice(parts):
            return skips.one_of(_skips(part, of_rule) for part in parts)
        case Repeat(part, least, most):
            return skips.repeated(_skips(part, of_rule), least, most)
        case Literal(""):
            return skips.NOTHING
    return skips.ONE
