"""Limits of an API key, as the file of keys says (`core.api_keys`): what it may do, and take in all."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Limit = Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class KeyLimits(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Limits of one key's name, in each instance of a model that takes requests; None is no limit."""

    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None
    """Tokens of prompts and answers together."""
    max_concurrent_requests: Limit | None = None
    """Requests that wait or run."""
    max_waiting_requests: Limit | None = None
    """Limit that replaces the setting `max_waiting_requests_per_key`."""
    max_waiting_tokens: Limit | None = None
    """Limit that replaces the setting `max_waiting_tokens_per_key`."""
    max_stored_bytes: Limit | None = None
    """Bytes of its files in `batches_dir` together."""
    role: Literal["admin", "user"] | None = None
    """`admin` may do what changes the server for all clients. Without one a key is a `user`, if any key has a role."""
    weight: Annotated[float, msgspec.Meta(ge=0.01, le=100)] = 1.0
    """Share of the engine while several keys wait for it: one with 2 gets twice as many tokens as one with 1."""


NO_LIMITS = KeyLimits()


def parse_limits(words: list[str]) -> KeyLimits:
    """Limits written as `name=value` each.

    Raises:
        ValueError: an unknown name, one given twice, or a bad value; the message says which.
    """
    values: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name in values:
            raise ValueError(f"{word!r} is not one <limit>=<value>")
        values[name] = value
    try:
        return msgspec.convert(values, KeyLimits, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
