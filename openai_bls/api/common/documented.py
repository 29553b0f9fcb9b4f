"""Marks on fields that are decoded as `Any`: what the description of the API says of them."""

from __future__ import annotations

from typing import Any

from msgspec import Meta

DOCUMENTED = "documented"
"""Key of the mark in a field's `Meta.extra`."""


def documented(kind: Any) -> Meta:
    """The type that a field is described with, where a later check reads it, which can say better what is wrong."""
    return Meta(extra={DOCUMENTED: kind})


def limits(**keywords: Any) -> Meta:
    """Keywords of JSON schema for bounds that a later check enforces, such as `maxItems`."""
    return Meta(extra_json_schema=keywords)
