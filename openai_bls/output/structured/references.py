"""Names that use one another, rules of a grammar or definitions of a schema, put in order; how deep a schema gets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from openai_bls.output.structured.errors import FormatError

# Libraries recurse into what is referenced, and a stack that runs over ends the process. llguidance's does (8 MiB) from
# some 1,600 levels on.
_MAX_DEPTH = 500


def dependencies_first(uses: Mapping[str, Collection[str]]) -> list[str]:
    """The names, each after all that it uses; where they use one another, after some of these.

    However long the chain is in which they use one another, there is no recursion.
    """
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
    """The names in groups: those that use one another, by way of others or not, are together. Each group comes after
    those that it uses."""
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
            name = waiting.pop()
            group.append(name)
            waiting += [user for user in dict.fromkeys(users[name]) if user not in seen]
            seen.update(users[name])
        if group:
            found.append(group)
    return found[::-1]


def depth(heights: Mapping[str, int], uses: Mapping[str, Collection[str]]) -> int:
    """How deep names get with all that they use, where each is so high by itself; those that use one another together
    as deep as all of them."""
    depths: dict[str, int] = {}
    for group in circles(uses):
        below = max((depths.get(other, 0) for name in group for other in uses[name]), default=0)
        depths |= dict.fromkeys(group, below + sum(heights[name] for name in group))
    return max(depths.values(), default=0)


def check_depth(schema: dict[str, Any], prefix: str) -> None:
    """Refuse a schema in normal form in which references lead too deep, each followed once.

    Args:
        schema: it.
        prefix: of a reference to a definition.

    Raises:
        FormatError: so it is.
    """
    heights: dict[str, int] = {}
    uses: dict[str, set[str]] = {}
    for name, node in schema.get("$defs", {}).items():
        uses[name] = set()
        heights[name] = _height(node, prefix, uses[name])
    if depth(heights, uses) > _MAX_DEPTH:
        raise FormatError(f"the schema is nested too deeply: over {_MAX_DEPTH} levels with what '$ref' leads to")


def _height(node: Any, prefix: str, used: set[str]) -> int:
    """How many objects lie within one another in a schema. Adds the definitions that it uses to `used`."""
    if isinstance(node, list):
        return max((_height(part, prefix, used) for part in node), default=0)
    if not isinstance(node, dict):
        return 0
    if isinstance(reference := node.get("$ref"), str):
        used.add(reference.removeprefix(prefix))
    return 1 + max((_height(part, prefix, used) for key, part in node.items() if key != "enum"), default=0)
