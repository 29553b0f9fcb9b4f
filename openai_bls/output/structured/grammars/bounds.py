"""Bounds on the recursion and blow-up of llguidance: graphs of rules and definitions, joined patterns, Lark text.

llguidance knows no limit to its recursion: from some 1,600 schemas or 3,000 rules within one another its stack (8 MiB)
runs over, which ends the process. And it works out whether any string matches all patterns that are joined, in time and
memory that multiply with each: four take no time, sixteen seconds, forty all the memory that there is. Of a
`multipleOf` it makes an automaton with a state for each remainder: 999983 takes fifteen seconds and 400 MB.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from decimal import Decimal
from itertools import islice
from typing import Any

from openai_bls.output.structured.errors import FormatError

# Schemas joined by one `allOf` that hold patterns, for the same string perhaps.
_MAX_JOINED = 8
# Steps taken to count them; subschemas are visited once for each `allOf` that joins them.
_MAX_STEPS = 200_000
_MAX_LARK_LEVELS = 1_500
# Remainders of all 'multipleOf' together, in units of their last digit: 0.2 s and 10 MB.
_MAX_REMAINDERS = 1 << 14
_LARK_LEVEL = re.compile(r"^[^\n:]*:|[(\[{]", re.MULTILINE)
_LARK_JSON = re.compile(r"%json\s*")
_LARK_TOKEN = re.compile(
    r"/(?:[^/\\]|\\.)*(?:/|\\?\Z)|\"(?:[^\"\\]|\\.)*(?:\"|\\?\Z)|(?P<name>[A-Za-z_][A-Za-z0-9_-]*)|(?P<group>[()])",
    re.DOTALL,
)


def dependencies_first(uses: Mapping[str, Collection[str]]) -> list[str]:
    """The names, each after all that it uses; names that use one another in any order. Without recursion."""
    done: dict[str, None] = {}
    begun: set[str] = set()
    for first in uses:
        path = [] if first in begun else [(first, iter(uses[first]))]
        begun.add(first)
        while path:
            name, used = path[-1]
            following = next((other for other in used if other not in begun), None)
            if following is None:
                done[name] = None
                path.pop()
            else:
                begun.add(following)
                path.append((following, iter(uses[following])))
    return list(done)


def circles(uses: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Strongly connected components (Kosaraju), each after those that it uses."""
    users: dict[str, list[str]] = {name: [] for name in uses}
    for name, used in uses.items():
        for other in used:
            users[other].append(name)
    found: list[list[str]] = []
    seen: set[str] = set()
    for first in reversed(dependencies_first(uses)):
        group = []
        waiting = [] if first in seen else [first]
        seen.add(first)
        while waiting:
            group.append(waiting.pop())
            waiting += [user for user in dict.fromkeys(users[group[-1]]) if user not in seen]
            seen.update(users[group[-1]])
        found += [group] if group else []
    return found[::-1]


def depth(heights: Mapping[str, int], uses: Mapping[str, Collection[str]]) -> int:
    """Levels of the deepest name with all that it uses; names that use one another count once each."""
    depths: dict[str, int] = {}
    for group in circles(uses):
        below = max((depths.get(other, 0) for name in group for other in uses[name]), default=0)
        depths |= dict.fromkeys(group, below + sum(heights[name] for name in group))
    return max(depths.values(), default=0)


class Gates:
    """Facts that follow from one another: a gate opens once all, or any, of its parts are open. Linear costs."""

    def __init__(self) -> None:
        # By gate: how many parts must still open, and the gates that it is a part of.
        self._missing: list[int] = []
        self._users: list[list[int]] = []
        self.always = self.all_of(())
        self.never = self.any_of(())

    def all_of(self, parts: Iterable[int]) -> int:
        """A gate that opens when all of its parts are open; at once if there is none."""
        parts = list(parts)
        return self._gate(parts, len(parts))

    def any_of(self, parts: Iterable[int]) -> int:
        """A gate that opens when one of its parts is open; never if there is none."""
        return self._gate(parts, 1)

    def add(self, gate: int, part: int) -> None:
        """Give a gate of `any_of` another part."""
        self._users[part].append(gate)

    def settle(self) -> list[bool]:
        """Whether each gate opens."""
        missing = list(self._missing)
        ready = [gate for gate, count in enumerate(missing) if not count]
        while ready:
            for user in self._users[ready.pop()]:
                missing[user] -= 1
                if not missing[user]:
                    ready.append(user)
        # Of several parts that open a gate of `any_of`, all but the first take it below 0.
        return [count <= 0 for count in missing]

    def _gate(self, parts: Iterable[int], missing: int) -> int:
        self._missing.append(missing)
        self._users.append([])
        for part in parts:
            self._users[part].append(len(self._missing) - 1)
        return len(self._missing) - 1


def check_joined(schema: Any) -> None:
    """Refuse a schema, with local references, whose `allOf` and `$ref` join too many schemas with patterns.

    Raises:
        FormatError: it does.
    """
    walk = _Walk(schema)
    for node in walk.below(schema):
        if isinstance(node.get("allOf"), list) or ("$ref" in node and len(node) > 1):
            patterned = (part for part in walk.joined(node) if walk.has_pattern(part))
            if len(list(islice(patterned, _MAX_JOINED + 1))) > _MAX_JOINED:
                raise FormatError(
                    f"'allOf' and '$ref' join more than {_MAX_JOINED} schemas that hold a 'pattern' or 'format'"
                )


def check_multiples(schema: Any) -> None:
    """Refuse a schema, with local references, whose `multipleOf` are too large for an automaton, alone or joined.

    Raises:
        FormatError: they are.
    """
    walk = _Walk(schema)
    held = [node for node in walk.below(schema) if _multiple(node) is not None]
    if sum(map(_remainders, held)) > _MAX_REMAINDERS:
        raise FormatError(_TOO_MANY_REMAINDERS)
    for node in walk.below(schema) if len(held) > 1 else ():
        if _joins(node):
            parts = (_multiple(part) for part in walk.below(node, follow=True))
            if _joined_remainders({part for part in parts if part is not None}) > _MAX_REMAINDERS:
                raise FormatError(f"{_TOO_MANY_REMAINDERS} where 'allOf', 'anyOf', 'oneOf' or '$ref' join them")


_TOO_MANY_REMAINDERS = (
    f"'multipleOf' takes too much: {_MAX_REMAINDERS} at most for all together, each in units of its last digit"
)
_APPLICATORS = ("$ref", "allOf", "anyOf", "oneOf")


def _multiple(node: dict[str, Any]) -> Decimal | None:
    """A schema's `multipleOf`; None without one that has a meaning."""
    value = node.get("multipleOf")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        return None
    return Decimal(repr(value))


def _remainders(node: dict[str, Any]) -> int:
    multiple = _multiple(node)
    assert multiple is not None
    # Powers of ten are told by the last digits; of larger ones llguidance takes no multiple, as 32 bits run over.
    if node.get("type") == "integer" and multiple <= 10**8 and multiple.normalize().as_tuple().digits == (1,):
        return 1
    return _joined_remainders({multiple})


def _joined_remainders(multiples: set[Decimal]) -> int:
    """The least number that is a multiple of all, in units of their last digit."""
    digits = max((max(0, -_exponent(multiple)) for multiple in multiples), default=0)
    found = 1
    for multiple in multiples:
        found = math.lcm(found, int(multiple.scaleb(digits)))
        if found > _MAX_REMAINDERS:
            break
    return found


def _exponent(multiple: Decimal) -> int:
    exponent = multiple.normalize().as_tuple().exponent
    assert isinstance(exponent, int)
    return exponent


def _joins(node: dict[str, Any]) -> bool:
    """True if an instance must match several of the schemas in a node."""
    applied = [key for key in _APPLICATORS if key in node]
    several = isinstance(node.get("allOf"), list) and len(node["allOf"]) > 1
    return several or (bool(applied) and len(node.keys() - {"$defs", "definitions"}) > 1)


class _Walk:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._steps = 0

    def below(self, node: Any, *, follow: bool = False) -> Iterator[dict[str, Any]]:
        """All objects in `node`, with what they refer to if `follow`, each once."""
        seen: set[int] = set()
        waiting = [node]
        while waiting:
            node = waiting.pop()
            if follow:
                self._steps += 1
                if self._steps > _MAX_STEPS:
                    raise FormatError("too much of the schema is joined by 'allOf' and '$ref'")
            if isinstance(node, list):
                waiting += node
            elif isinstance(node, dict) and id(node) not in seen:
                seen.add(id(node))
                yield node
                waiting += node.values()
                if follow and isinstance(node.get("$ref"), str):
                    waiting.append(self._target(node["$ref"]))

    def joined(self, node: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The schemas that an instance of `node` must match together, each once."""
        seen: set[int] = set()
        waiting: list[Any] = [node]
        while waiting:
            node = waiting.pop()
            if not isinstance(node, dict) or id(node) in seen:
                continue
            seen.add(id(node))
            waiting += [part for part in node.get("allOf", ()) if isinstance(part, dict)]
            if isinstance(node.get("$ref"), str):
                waiting.append(self._target(node["$ref"]))
            yield {key: value for key, value in node.items() if key not in ("allOf", "$ref")}

    def has_pattern(self, part: dict[str, Any]) -> bool:
        """True if a schema holds a pattern anywhere, its references included."""
        return any(isinstance(node.get(key), str) for node in self.below(part, follow=True) for key in _PATTERNS)

    def _target(self, pointer: str) -> Any:
        node = self._root
        for step in pointer.removeprefix("#").strip("/").split("/"):
            if step:
                key = step.replace("~1", "/").replace("~0", "~")
                node = node.get(key) if isinstance(node, dict) else None
        return node


_PATTERNS = ("pattern", "format")


def check_rules(text: str) -> None:
    """Refuse a Lark grammar of ours, one rule a line, whose rules and groups get too deep by way of one another.

    Raises:
        FormatError: they do.
    """
    heights: dict[str, int] = {}
    uses: dict[str, set[str]] = {}
    for line in text.splitlines():
        name, _, body = line.partition(": ")
        name = name.removesuffix("[lazy]")
        level = deepest = 0
        uses[name] = set()
        for token in _LARK_TOKEN.finditer("" if body.startswith("%json") else body):
            if token.lastgroup == "name":
                uses[name].add(token[0])
            elif token.lastgroup == "group":
                level += 1 if token[0] == "(" else -1
                deepest = max(deepest, level)
        heights[name] = 1 + deepest
    known = {name: [other for other in used if other in heights] for name, used in uses.items()}
    if depth(heights, known) > _MAX_LARK_LEVELS:
        raise FormatError("it is too large, or combines too many parts")


def check_lark(source: str) -> None:
    """Refuse a client's Lark grammar that may get too deep, however its rules use one another.

    Raises:
        FormatError: so it is.
    """
    levels = place = 0
    while (found := _LARK_JSON.search(source, place)) is not None:
        levels += sum(1 for _ in _LARK_LEVEL.finditer(source, place, found.start()))
        try:
            schema, place = json.JSONDecoder().raw_decode(source, found.end())
        except (ValueError, RecursionError):
            raise FormatError("bad Lark grammar: '%json' without a JSON schema behind it") from None
        check_joined(schema)
        check_multiples(schema)
        references: set[str] = set()
        levels += _height(schema, references) * (1 + len(references))
    levels += sum(1 for _ in _LARK_LEVEL.finditer(source, place))
    if levels > _MAX_LARK_LEVELS:
        raise FormatError(
            f"the Lark grammar may be over {_MAX_LARK_LEVELS} levels deep: its rules, groups, and the depth of each "
            "'%json' times the references in it"
        )


def _height(node: Any, references: set[str]) -> int:
    """Levels of objects and arrays within one another. Adds what is referred to."""
    if isinstance(node, dict) and isinstance(reference := node.get("$ref"), str):
        references.add(reference)
    parts = node.values() if isinstance(node, dict) else node if isinstance(node, list) else None
    return 0 if parts is None else 1 + max((_height(part, references) for part in parts), default=0)
