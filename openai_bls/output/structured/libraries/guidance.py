"""Grammars for vLLM's backend `guidance`: what its llguidance (1.7) enforces exactly; the rest is refused by name.

The library is the embedded engine's in an older version, so a grammar has the same text. All of `keywords` was held
against it but for two things, which are refused:

- Names of properties cannot be kept free of escapes before 1.9: where an object declares some names and leaves others
  free, a free one may repeat a declared one as `\\u0061`.
- A `multipleOf` lets no negative number pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from openai_bls.output.structured.errors import FormatError
from openai_bls.output.structured.formats import Format
from openai_bls.output.structured.schemas import schema_nodes

KINDS = ("json_schema", "regex", "lark")
"""Values of `Grammar.kind` that vLLM's `guidance` backend gets."""


def check(wanted: Format) -> None:
    """Refuse a checked format that the backend would not enforce in full.

    Args:
        wanted: format, as `formats.checked` returns it.

    Raises:
        FormatError: it has what the backend lets pass.
    """
    if any(schema_nodes.open_names(part) for part in _schemas(wanted)):
        raise FormatError(
            "the JSON schema keyword 'additionalProperties' beside 'properties' and where schemas are combined cannot "
            "be enforced by this server's engine: set it to false, or declare all properties"
        )
    if any(map(_has_signed_multiples, _schemas(wanted))):
        raise FormatError(
            "the JSON schema keyword 'multipleOf' where numbers may be negative cannot be enforced by this server's "
            "engine: set 'minimum' to 0"
        )


def _schemas(node: Any) -> Iterator[Any]:
    """The JSON schemas in a format whose properties are written as JSON."""
    if isinstance(node, list):
        for part in node:
            yield from _schemas(part)
    if not isinstance(node, dict):
        return
    if node.get("type") == "json_schema":
        # In the other styles the names of the outermost object are tags, without escapes.
        schema = node["json_schema"]
        yield from schema_nodes.subschemas(schema) if "style" in node else (schema,)
        return
    for key in ("elements", "tags", "content"):
        yield from _schemas(node.get(key))


def _has_signed_multiples(node: Any) -> bool:
    """True if a checked schema allows multiples below zero."""
    if not isinstance(node, dict):
        return False
    least = max(node.get("minimum", -1), node.get("exclusiveMinimum", -1))
    if "multipleOf" in node and least < 0:
        return True
    return any(map(_has_signed_multiples, schema_nodes.subschemas(node)))
