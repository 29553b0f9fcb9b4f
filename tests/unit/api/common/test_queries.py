"""Pages of lists."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.api.common.queries import page
from openai_bls.core.errors import InvalidRequestError


class Listed(NamedTuple):
    id: str


@given(st.lists(st.integers(0, 30), unique=True), st.integers(1, 12), st.none() | st.integers(0, 30), st.booleans())
def test_a_page_shows_its_own_records_alone(
    numbers: list[int], limit: int, after: int | None, newest_first: bool
) -> None:
    records = [Listed(str(number)) for number in numbers]
    ordered = [record.id for record in (reversed(records) if newest_first else records)]
    shown: list[str] = []

    def show(record: Listed) -> str:
        shown.append(record.id)
        return record.id

    def asked() -> dict[str, object]:
        return page(records, show, newest_first=newest_first, limit=limit, after=None if after is None else str(after))

    if after is not None and str(after) not in ordered:
        with pytest.raises(InvalidRequestError) as caught:
            asked()
        assert caught.value.param == "after"
        return
    rest = ordered if after is None else ordered[ordered.index(str(after)) + 1 :]
    found = asked()
    assert found["data"] == shown == rest[:limit]
    assert (found["first_id"], found["last_id"]) == ((shown[0], shown[-1]) if shown else ("", ""))
    assert found["has_more"] == (len(rest) > limit)
