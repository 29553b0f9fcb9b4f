"""Grammars in Lark's form, which llguidance reads and checks itself.

Looked for here is only what would end the process: it recurses into rules and schemas, and knows no limit to that.
"""

from __future__ import annotations

import json
import re
from typing import Any

from openai_bls.output.structured import intersections
from openai_bls.output.structured.errors import FormatError

# From some 3,000 levels on 8 MiB of stack run over.
_MAX_LEVELS = 1_500

_LEVEL = re.compile(r"^[^\n:]*:|[(\[{]", re.MULTILINE)
_JSON = re.compile(r"%json\s*")


def check(source: str) -> None:
    """Refuse a grammar that may get too deep, however its rules use one another.

    Raises:
        FormatError: so it is.
    """
    levels = 0
    place = 0
    while (found := _JSON.search(source, place)) is not None:
        levels += _levels(source, place, found.start())
        try:
            schema, place = json.JSONDecoder().raw_decode(source, found.end())
        except (ValueError, RecursionError):
            raise FormatError("bad Lark grammar: '%json' without a JSON schema behind it") from None
        intersections.check(schema)
        references: set[str] = set()
        levels += _height(schema, references) * (1 + len(references))
    levels += _levels(source, place, len(source))
    if levels > _MAX_LEVELS:
        raise FormatError(
            f"the Lark grammar may be over {_MAX_LEVELS} levels deep: its rules, groups, and the depth of each '%json' "
            "times the references in it"
        )


def _levels(source: str, start: int, end: int) -> int:
    return sum(1 for _ in _LEVEL.finditer(source, start, end))


def _height(node: Any, references: set[str]) -> int:
    """How many objects and arrays lie within one another. Adds what is referred to."""
    if isinstance(node, dict) and isinstance(reference := node.get("$ref"), str):
        references.add(reference)
    parts = node.values() if isinstance(node, dict) else node if isinstance(node, list) else None
    return 0 if parts is None else 1 + max((_height(part, references) for part in parts), default=0)
