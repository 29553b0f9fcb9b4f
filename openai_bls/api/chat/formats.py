"""Formats of structured output, for the description of the API: `output.structured` reads and checks them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

FormatName = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_\-]+\Z")]


class JsonSchema(msgspec.Struct, forbid_unknown_fields=True):
    """A JSON schema with its name."""

    name: FormatName
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None
    """The output is valid by the schema, whether `strict` or not."""


class TextFormat(msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """Free text."""


class JsonObjectFormat(msgspec.Struct, tag_field="type", tag="json_object", forbid_unknown_fields=True):
    """A JSON object."""


class JsonSchemaFormat(msgspec.Struct, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    """JSON that is valid by a schema."""

    json_schema: JsonSchema


class StructuralTagFormat(msgspec.Struct, tag_field="type", tag="structural_tag"):
    """Text with constrained parts, in both of vLLM's forms."""


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    """One of the first six fields says what the output must match."""

    json: dict[str, Any] | bool | str | None = None
    """JSON schema, also as text."""
    regex: Annotated[str, Meta(min_length=1)] | None = None
    """Regular expression that the whole output matches."""
    choice: Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1)] | None = None
    """Strings, one of which is the output."""
    grammar: Annotated[str, Meta(min_length=1)] | None = None
    """Grammar in GBNF (`root ::= ...`), or in Lark (`start: ...`) where the engine's library is llguidance."""
    json_object: bool | None = None
    """True is a JSON object."""
    structural_tag: dict[str, Any] | str | None = None
    """Structural tag, also as JSON text."""
    disable_any_whitespace: bool | None = None
    """No effect: JSON is written on one line."""
    disable_fallback: bool | None = None
    """No effect: there is no fallback."""
    disable_additional_properties: Literal[False] | None = None
    whitespace_pattern: None = None
    backend: Literal["auto"] | None = None
