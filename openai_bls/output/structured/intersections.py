"""How many patterns a string must match at once.

llguidance works out whether any string can match them all, in time and memory that multiply with each: four take no
time, sixteen seconds, forty all the memory that there is. `validate_grammar` knows no limit to that.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from openai_bls.output.structured.errors import FormatError

_MOST = 8
"""Of the schemas joined by one `allOf` that hold patterns, for the same string perhaps."""
_MAX_STEPS = 200_000
"""Taken to find that out; subschemas are looked through once for each `allOf` that joins them."""


def check(schema: Any) -> None:
    """Refuse a schema that joins too many.

    Args:
        schema: whose references are local ones.

    Raises:
        FormatError: it does.
    """
    reader = _Reader(schema)
    for node in _nodes(schema):
        if isinstance(node.get("allOf"), list) or ("$ref" in node and len(node) > 1):
            patterned = (part for part in reader.joined(node) if reader.has_pattern(part))
            if len(list(islice(patterned, _MOST + 1))) > _MOST:
                raise FormatError(
                    f"'allOf' and '$ref' join more than {_MOST} schemas that hold a 'pattern' or 'format'"
                )


class _Reader:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._steps = 0

    def joined(self, node: Any) -> Iterator[Any]:
        """The schemas that an instance of `node` must match together, each once."""
        seen: set[int] = set()
        waiting = [node]
        while waiting:
            node = waiting.pop()
            self._step()
            if not isinstance(node, dict) or id(node) in seen:
                continue
            seen.add(id(node))
            waiting += [part for part in node.get("allOf", ()) if isinstance(part, dict)]
            if isinstance(node.get("$ref"), str):
                waiting.append(self._target(node["$ref"]))
            yield {key: value for key, value in node.items() if key not in ("allOf", "$ref")}

    def has_pattern(self, part: Any) -> bool:
        """Whether a schema holds a pattern anywhere, what it refers to included."""
        seen: set[int] = set()
        waiting = [part]
        while waiting:
            node = waiting.pop()
            self._step()
            if isinstance(node, dict):
                if id(node) in seen:
                    continue
                seen.add(id(node))
                if isinstance(node.get("pattern"), str) or isinstance(node.get("format"), str):
                    return True
                if isinstance(node.get("$ref"), str):
                    waiting.append(self._target(node["$ref"]))
                waiting += node.values()
            elif isinstance(node, list):
                waiting += node
        return False

    def _step(self) -> None:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise FormatError("too much of the schema is joined by 'allOf' and '$ref'")

    def _target(self, pointer: str) -> Any:
        node = self._root
        for step in pointer.removeprefix("#").strip("/").split("/"):
            if step:
                key = step.replace("~1", "/").replace("~0", "~")
                node = node.get(key) if isinstance(node, dict) else None
        return node


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
