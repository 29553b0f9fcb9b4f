"""Pages of a response's input items."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from openai_bls.api.responses.items import Item
from openai_bls.core.errors import InvalidRequestError

MAX_LIMIT = 100
DEFAULT_LIMIT = 20


def page(items: list[Item], query: Mapping[str, str]) -> dict[str, Any]:
    """A `list` object.

    Args:
        items: all of them, the oldest first.
        query: `limit`, `order` and `after`.

    Raises:
        InvalidRequestError: one of them has a bad value.
    """
    limit = query.get("limit", str(DEFAULT_LIMIT))
    if not re.fullmatch(r"[0-9]{1,3}", limit) or not 1 <= int(limit) <= MAX_LIMIT:
        raise InvalidRequestError(f"'limit' must be an integer from 1 to {MAX_LIMIT}.", param="limit")
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequestError("'order' must be 'asc' or 'desc'.", param="order")
    ordered = items if order == "asc" else items[::-1]
    after = query.get("after")
    start = 0
    if after is not None:
        places = [at for at, item in enumerate(ordered) if item["id"] == after]
        if not places:
            raise InvalidRequestError(f"'after' is {after!r}, which is no item of this response.", param="after")
        start = places[0] + 1
    data = ordered[start : start + int(limit)]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": start + len(data) < len(ordered),
    }
