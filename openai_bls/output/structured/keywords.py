"""What is known of each JSON schema keyword.

===========================================================  ==========================================================
keyword                                                      honoured by
===========================================================  ==========================================================
`type`, `properties`, `required`, `items`, `minItems`,       xgrammar and llguidance
`maxItems`, `enum`, `const`, `anyOf`, local `$ref` (also
recursive), `oneOf` of alternatives that types, values or a
tag tell apart, `additionalProperties` beside no
`properties`, `minimum` and its kin on integers
`pattern`, `format`, `minLength`, `maxLength`,               llguidance
`multipleOf`, `minimum` and its kin on numbers,
`prefixItems`, `patternProperties`, `minProperties`,
`maxProperties`, `additionalProperties` beside
`properties`, `allOf`, keywords beside `$ref`, `anyOf`, ...
everything in `REFUSED`                                      neither
===========================================================  ==========================================================

xgrammar 0.2.8 would take most of the second group, too, but not to the letter: a string of a certain length may hold
control characters, which is no JSON; unknown formats, keywords beside `$ref`, `const`, `enum` and `anyOf`, and most of
`multipleOf` are passed over; an additional property may repeat a declared one under an escaped name.
"""

from __future__ import annotations

TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")

ANNOTATIONS = frozenset(
    {
        "title",
        "description",
        "default",
        "example",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$comment",
        "$schema",
        "$anchor",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        # OpenAPI's, which pydantic writes beside a `oneOf` of tagged objects; the alternatives themselves say as much.
        "discriminator",
        "externalDocs",
        "xml",
        "$defs",
        "definitions",
    }
)
"""Say nothing about which instances are valid. So do those that begin with `x-`."""

OF_TYPE: dict[str, tuple[str, ...]] = {
    "object": (
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "unevaluatedProperties",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
    ),
    "array": (
        "items",
        "prefixItems",
        "additionalItems",
        "minItems",
        "maxItems",
        "uniqueItems",
        "contains",
        "minContains",
        "maxContains",
        "unevaluatedItems",
    ),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
"""The keywords that speak of one type only; `number` stands for integers as well."""

APPLICATORS = ("$ref", "allOf", "anyOf", "oneOf")
VALUES = ("enum", "const")

REFUSED = {
    "not": "list what is allowed instead",
    "if": "use 'anyOf' with an alternative for each case",
    "then": "use 'anyOf' with an alternative for each case",
    "else": "use 'anyOf' with an alternative for each case",
    "uniqueItems": "leave it out",
    "contains": "leave it out",
    "minContains": "leave it out",
    "maxContains": "leave it out",
    "propertyNames": "use 'patternProperties' with 'additionalProperties': false",
    "dependentRequired": "use 'anyOf' with an alternative for each case",
    "dependentSchemas": "use 'anyOf' with an alternative for each case",
    "dependencies": "use 'anyOf' with an alternative for each case",
    "unevaluatedProperties": "use 'additionalProperties'",
    "unevaluatedItems": "use 'items'",
    "$dynamicRef": "use '$ref'",
    "$dynamicAnchor": "use '$ref'",
    "$recursiveRef": "use '$ref'",
    "$recursiveAnchor": "use '$ref'",
    "$vocabulary": "leave it out",
    "nullable": "use 'type': [..., \"null\"]",
}
"""What neither library can enforce, and what to do about it."""

FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
"""Of strings. All that llguidance knows, hence these and no others."""
