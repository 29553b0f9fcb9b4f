"""Refusals within this package; `grammar` turns them into the client's error."""

from __future__ import annotations

import json
from typing import Any

import msgspec

_MAX_SHOWN = 60


class FormatError(Exception):
    """A format that cannot be honoured. The message is for the client: what is wrong, where, what would do."""


def shown(value: Any) -> str:
    """A value as JSON for a message, cut short."""
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):  # half a surrogate pair, or nested too deeply
        text = ascii(value) if isinstance(value, str) else type(value).__name__
    return cut(text, _MAX_SHOWN)


def dumped(value: Any) -> str:
    """A value as JSON text for a grammar library."""
    return json.dumps(value, ensure_ascii=False)


def cut(text: str, length: int) -> str:
    """`text`, of `length` characters at most."""
    return text if len(text) <= length else text[: length - 1] + "…"
