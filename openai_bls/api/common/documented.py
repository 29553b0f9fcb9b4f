"""Marks on fields that are decoded as `Any`: what the description of the API says of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Meta

DOCUMENTED = "documented"
"""Key of the mark in a field's `Meta.extra`."""


_PER_TOKEN = "per_token"

PER_TOKEN = Meta(extra={_PER_TOKEN: True})
"""Mark of an array with at most one item for each token of the longest context; `large_bodies.check_count` holds it."""


def documented(kind: Any, *, per_token: bool = False) -> Meta:
    """The type that a field is described with, where a later check reads it, which can say better what is wrong.

    Args:
        kind: the type.
        per_token: `PER_TOKEN` as well.
    """
    return Meta(extra={DOCUMENTED: kind, _PER_TOKEN: per_token})


def is_per_token(extra: Mapping[str, Any] | None) -> bool:
    """True if a field's `Meta.extra` has the mark `PER_TOKEN`."""
    return bool((extra or {}).get(_PER_TOKEN))


def limits(**keywords: Any) -> Meta:
    """Keywords of JSON schema for bounds that a later check enforces, such as `maxItems`."""
    return Meta(extra_json_schema=keywords)
