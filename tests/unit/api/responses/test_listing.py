"""Pages of input items."""

from __future__ import annotations

from typing import Any

import pytest

from openai_bls.api.responses.items import page
from openai_bls.core.errors import InvalidRequestError

ITEMS = [{"id": str(at)} for at in range(30)]


def ids(**query: str) -> list[int]:
    return [int(item["id"]) for item in page(ITEMS, query)["data"]]


def test_the_latest_twenty_by_default() -> None:
    assert ids() == list(range(29, 9, -1))
    listed = page(ITEMS, {})
    assert (listed["object"], listed["first_id"], listed["last_id"], listed["has_more"]) == ("list", "29", "10", True)


def test_order_limit_and_after() -> None:
    assert ids(order="asc", limit="3") == [0, 1, 2]
    assert ids(order="asc", limit="3", after="2") == [3, 4, 5]
    assert ids(order="desc", after="2") == [1, 0]
    assert not page(ITEMS, {"after": "2"})["has_more"]
    assert not page(ITEMS, {"limit": "100"})["has_more"]
    assert page(ITEMS, {"limit": "29"})["has_more"]


def test_nothing() -> None:
    nothing: dict[str, Any] = {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    assert page([], {}) == nothing
    assert page(ITEMS, {"after": "0"}) == nothing


@pytest.mark.parametrize(
    ("name", "value"),
    [("limit", "0"), ("limit", "101"), ("limit", "-1"), ("limit", "x"), ("limit", ""), ("order", "up"), ("after", "?")],
)
def test_bad_values(name: str, value: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        page(ITEMS, {name: value})
    assert caught.value.param == name
