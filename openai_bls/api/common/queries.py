"""Query parameters of OpenAI's endpoints, and the `list` object of a page that they choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from openai_bls.api.common.bodies import fault
from openai_bls.api.common.faults import converted
from openai_bls.core.errors import InvalidRequestError

T = TypeVar("T")
RecordT = TypeVar("RecordT")


class NoQuery(msgspec.Struct):
    """Query of an endpoint that takes none."""


def parse_query(given: Mapping[str, Any], schema: type[T]) -> T:
    """Query parameters as a `schema`, whose fields they are; numbers and booleans come as text.

    Raises:
        InvalidRequestError: one is unknown, or has a bad value; `param` names it.
    """
    known = {field.encode_name for field in msgspec.structs.fields(schema)}  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            raise InvalidRequestError(f"The query parameter '{name}' is not supported here.", param=name)
    return converted(dict(given), schema, fault, strict=False)


def page(
    records: Sequence[RecordT],
    shown: Callable[[RecordT], dict[str, Any]],
    *,
    newest_first: bool = True,
    limit: int,
    after: str | None,
) -> dict[str, Any]:
    """A `list` object.

    Args:
        records: all of them, the oldest first.
        shown: a record as the client sees it, with its `id`.
        newest_first: whether the newest record comes first, else the oldest.
        limit: records of the page.
        after: id of the record after which the page begins; None begins with the first.

    Raises:
        InvalidRequestError: there is no record `after`.
    """
    objects = [shown(record) for record in (reversed(records) if newest_first else records)]
    start = 0
    if after is not None:
        start = next((at for at, one in enumerate(objects, 1) if one["id"] == after), 0)
        if not start:
            raise InvalidRequestError(f"'after' is {after[:100]!r}, which is not in this list.", param="after")
    data = objects[start : start + limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": start + len(data) < len(objects),
    }
