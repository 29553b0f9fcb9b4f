"""JSON encoder and object ids of all answers."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode


def encode(value: Any) -> bytes:
    """Compact JSON in UTF-8."""
    return _encode(value)


def new_id(prefix: str, n_bytes: int = 16) -> str:
    """A random id: `new_id("chatcmpl-")` is `chatcmpl-` and 32 hexadecimal digits, two per byte."""
    return prefix + secrets.token_hex(n_bytes)
