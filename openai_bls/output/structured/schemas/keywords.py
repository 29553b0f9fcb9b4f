"""JSON schema keywords, by the grammar library that enforces them.

===========================================================  ==========================================================
keyword                                                      honoured by
===========================================================  ==========================================================
`type`, `properties`, `required`, `items`, `minItems`,       llguidance and xgrammar
`maxItems`, `enum`, `const`, `anyOf`, local `$ref` (also
recursive), `oneOf` of alternatives that types, values or a
tag tell apart, `additionalProperties` beside no
`properties`, `minimum` and its kin on integers
`pattern`, `format`, `minLength`, `maxLength`,               llguidance: the embedded engine, and TensorRT-LLM where it
`multipleOf`, `minimum` and its kin on numbers,              is the guided decoding backend (there not with `format`
`prefixItems`, `patternProperties`, `minProperties`,         `uri`, nor `additionalProperties` beside `properties`)
`maxProperties`, `additionalProperties` beside
`properties`, `allOf`, keywords beside `$ref`, `anyOf`, ...
everything in `REFUSED`                                      neither
what JSON schema does not know (`optional`, `enumNames`,     nobody: annotations, but refused where the request says
`propertyOrdering`, ...)                                     `strict`
===========================================================  ==========================================================

TensorRT-LLM's xgrammar accepts most of the second group, but does not enforce it exactly: it ignores formats that it
does not know, keywords beside `$ref`, `const`, `enum` and `anyOf`, and most of `multipleOf`; an additional property
may repeat a declared one under an escaped name.
"""

from __future__ import annotations

TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")

ANNOTATIONS = frozenset(
    (
        *("title", "description", "default", "example", "examples", "deprecated", "readOnly", "writeOnly"),
        *("$comment", "$schema", "$anchor", "contentEncoding", "contentMediaType", "contentSchema"),
        # OpenAPI's, which pydantic writes beside a `oneOf` of tagged objects; the alternatives themselves say as much.
        *("discriminator", "externalDocs", "xml", "$defs", "definitions"),
    )
)
"""Keywords that do not affect validation, as do those that begin with `x-`."""

OF_TYPE: dict[str, tuple[str, ...]] = {
    "object": (
        *("properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties"),
        *("maxProperties", "unevaluatedProperties", "dependentRequired", "dependentSchemas", "dependencies"),
    ),
    "array": (
        *("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains"),
        *("minContains", "maxContains", "unevaluatedItems"),
    ),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
"""Type → keywords that apply to it only; `number` includes integers."""

APPLICATORS = ("$ref", "allOf", "anyOf", "oneOf")
VALUES = ("enum", "const")

REFUSED = {
    "not": "list what is allowed instead",
    **dict.fromkeys(("if", "then", "else"), "use 'anyOf' with an alternative for each case"),
    **dict.fromkeys(("uniqueItems", "contains", "minContains", "maxContains", "$vocabulary"), "leave it out"),
    "propertyNames": "use 'patternProperties' with 'additionalProperties': false",
    **dict.fromkeys(
        ("dependentRequired", "dependentSchemas", "dependencies"), "use 'anyOf' with an alternative for each case"
    ),
    "unevaluatedProperties": "use 'additionalProperties'",
    "unevaluatedItems": "use 'items'",
    **dict.fromkeys(("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor"), "use '$ref'"),
    # Not in JSON schema, but OpenAPI's: honoured where nothing is strict.
    "nullable": "use 'type': [..., \"null\"]",
}
"""Keywords that neither library can enforce → advice for the refusal."""

NEUTRAL: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("uniqueItems", "nullable"), (False,)),
    "propertyNames": (True, {}, {"type": "string"}),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "dependencies"), ({},)),
    **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems"), (True, {})),
}
"""Values of refused keywords that have no effect."""

FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
"""String formats that are enforced: all that llguidance knows."""

OTHER_FORMATS = (
    *("idn-email", "idn-hostname", "uri-reference", "iri", "iri-reference", "uri-template"),
    *("json-pointer", "relative-json-pointer", "regex"),
)
"""JSON schema's other formats, refused. Whatever else stands there, such as OpenAPI's `password`, is an annotation."""
