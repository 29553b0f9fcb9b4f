"""JSON encoder and object ids of all answers."""

from __future__ import annotations

import os
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode

# Ids for which random numbers are drawn at a time: drawing them costs ten times what the rest of an id does.
_DRAWN_IDS = 64
_random: list[str] = []


def encode(value: Any) -> bytes:
    """Compact JSON in UTF-8."""
    return _encode(value)


def new_id(prefix: str, n_bytes: int = 16) -> str:
    """A random id: `new_id("chatcmpl-")` is `chatcmpl-` and 32 hexadecimal digits, two for each of up to 16 bytes."""
    try:
        digits = _random.pop()
    except IndexError:
        drawn = os.urandom(16 * _DRAWN_IDS).hex()
        digits, *others = (drawn[at : at + 32] for at in range(0, len(drawn), 32))
        _random.extend(others)
    return prefix + digits[: 2 * n_bytes]
