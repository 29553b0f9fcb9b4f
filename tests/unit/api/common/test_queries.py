"""Query parameters, and pages of a list."""

from __future__ import annotations

from typing import Any

import pytest

from openai_bls.api.common.queries import page, parse_query
from openai_bls.api.responses.schema import PageQuery
from openai_bls.core.errors import InvalidRequestError

ITEMS: list[dict[str, Any]] = [{"id": str(at)} for at in range(30)]


def listed(items: list[dict[str, Any]], **given: str) -> dict[str, Any]:
    query = parse_query(given, PageQuery)
    return page(items, dict, newest_first=query.order == "desc", limit=query.limit, after=query.after)


def ids(**query: str) -> list[int]:
    return [int(item["id"]) for item in listed(ITEMS, **query)["data"]]


def test_the_latest_twenty_by_default() -> None:
    assert ids() == list(range(29, 9, -1))
    found = listed(ITEMS)
    assert (found["object"], found["first_id"], found["last_id"], found["has_more"]) == ("list", "29", "10", True)


def test_order_limit_and_after() -> None:
    assert ids(order="asc", limit="3") == [0, 1, 2]
    assert ids(order="asc", limit="3", after="2") == [3, 4, 5]
    assert ids(order="desc", after="2") == [1, 0]
    assert not listed(ITEMS, after="2")["has_more"]
    assert not listed(ITEMS, limit="100")["has_more"]
    assert listed(ITEMS, limit="29")["has_more"]


def test_nothing() -> None:
    nothing: dict[str, Any] = {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    assert listed([]) == nothing
    assert listed(ITEMS, after="0") == nothing


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("limit", "0"), ("limit", "101"), ("limit", "-1"), ("limit", "x"), ("limit", "")),
        *(("order", "up"), ("after", "?"), ("what", "1")),
    ],
)
def test_bad_values(name: str, value: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        listed(ITEMS, **{name: value})
    assert caught.value.param == name
