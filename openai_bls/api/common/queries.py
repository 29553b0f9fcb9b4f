"""Query parameters of OpenAI's endpoints, and the `list` object of a page that they choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from openai_bls.api.common.bodies import fault
from openai_bls.api.common.faults import converted
from openai_bls.core.errors import InvalidRequestError

T = TypeVar("T")


class Record(Protocol):
    """Anything that is listed."""

    @property
    def id(self) -> str:
        """Id of the item, by which `after` names it."""


RecordT = TypeVar("RecordT", bound=Record)


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
    shown: Callable[[RecordT], object],
    *,
    newest_first: bool = True,
    limit: int,
    after: str | None,
) -> dict[str, Any]:
    """A `list` object.

    Args:
        records: all of them, the oldest first.
        shown: a record as the client sees it; called for those of the page alone.
        newest_first: whether the newest record comes first, else the oldest.
        limit: records of the page.
        after: id of the record after which the page begins; None begins with the first.

    Raises:
        InvalidRequestError: there is no record `after`.
    """
    ordered = records[::-1] if newest_first else records
    start = 0
    if after is not None:
        start = next((at for at, record in enumerate(ordered, 1) if record.id == after), 0)
        if not start:
            raise InvalidRequestError(f"'after' is {after[:100]!r}, which is not in this list.", param="after")
    chosen = ordered[start : start + limit]
    return {
        "object": "list",
        "data": [shown(record) for record in chosen],
        # The SDK has them as texts: of an empty page, too.
        "first_id": chosen[0].id if chosen else "",
        "last_id": chosen[-1].id if chosen else "",
        "has_more": start + len(chosen) < len(ordered),
    }
