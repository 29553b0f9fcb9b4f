"""Pages of /v1/models in Anthropic's form: walked either way they have each model once, as the SDK's clients walk."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.api.http_support import asked
from tests.unit.core_support import Answered, Bench

HEADERS = (("anthropic-version", "2023-06-01"),)
NAMES = st.lists(st.text("abc/-.é ", min_size=1, max_size=6).map(str.strip).filter(bool), max_size=12, unique=True)


def answered(bench: Bench, **query: Any) -> Answered:
    return asked(bench, f"/v1/models?{urlencode(query)}", headers=HEADERS, method="GET")


def page(bench: Bench, **query: Any) -> dict[str, Any]:
    answer = answered(bench, **query)
    assert answer.status == 200
    found: dict[str, Any] = answer.json()
    ids = [model["id"] for model in found["data"]]
    assert (found["first_id"], found["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))
    assert len(ids) <= query.get("limit", 20)
    return found


@given(NAMES, st.integers(1, 9), st.booleans())
def test_pages_have_each_model_once(names: list[str], limit: int, beta: bool) -> None:
    bench = Bench(model_aliases=",".join(names))
    listed = [card["id"] for card in asked(bench, "/v1/models", method="GET").json()["data"]]
    given_to_all = {"limit": limit, **({"beta": "true"} if beta else {})}
    forward, more, after = list[str](), True, dict[str, str]()
    while more:
        found = page(bench, **given_to_all, **after)
        forward += [model["id"] for model in found["data"]]
        more, after = found["has_more"], {"after_id": found["last_id"]}
    assert forward == listed
    backward, more, before = list[str](), True, {"before_id": listed[-1]}
    while more:
        found = page(bench, **given_to_all, **before)
        backward = [model["id"] for model in found["data"]] + backward
        more, before = found["has_more"], {"before_id": found["first_id"]}
    assert backward == listed[:-1]


@given(
    st.sampled_from(["limit", "after_id", "before_id", "lifecycle", "other"]),
    st.text("0123456789abc-", min_size=1, max_size=5),
)
def test_what_a_page_refuses(name: str, value: str) -> None:
    if name == "limit" and value.isdecimal() and 1 <= int(value) <= 1000:
        return
    answer = answered(Bench(), **{name: value})
    assert answer.status == 400
    assert (answer.json()["type"], answer.json()["error"]["type"]) == ("error", "invalid_request_error")
    assert name in answer.json()["error"]["message"]
