"""What clients and engines say to each other through the server: KV transfer, priority, drafts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.engines.capabilities import ALL_FIELDS
from tests.unit.api.http_support import asked, refused
from tests.unit.core_support import Bench, engine_info

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
}
PASSED = ("priority", "kv_transfer_params")
small = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5)
values = st.recursive(
    small, lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=3), one, max_size=3)
)
params = st.dictionaries(st.text(max_size=8), values, max_size=4)


def bench_with(*fields: str) -> Bench:
    return Bench(engine_info(supported=tuple(field for field in ALL_FIELDS if field in fields or field not in PASSED)))


def answer(bench: Bench, path: str, more: dict[str, Any], **delta: Any) -> Any:
    found = asked(bench, path, {**BODIES[path], **more}, lambda: bench.engine.deliver(0, "ok", "length", **delta))
    assert found.status == 200, found.body
    return found


@settings(deadline=None, max_examples=40)
@given(path=st.sampled_from(sorted(BODIES)), there=params, back=st.none() | params)
def test_kv_transfer_params_go_in_and_out_as_they_are(
    path: str, there: dict[str, Any], back: dict[str, Any] | None
) -> None:
    bench = bench_with("kv_transfer_params")
    found = answer(bench, path, {"kv_transfer_params": there}, kv_transfer_params=back).json()
    assert bench.engine.requests[0].kv_transfer_params == (there or None)
    assert found.get("kv_transfer_params") == back
    assert ("kv_transfer_params" in found) == (back is not None)


@pytest.mark.parametrize("path", BODIES)
def test_a_stream_has_none_and_no_engine_needs_them(path: str) -> None:
    found = answer(bench_with("kv_transfer_params"), path, {"stream": True}, kv_transfer_params={"a": 1})
    assert b"kv_transfer_params" not in found.body
    assert "kv_transfer_params" not in answer(bench_with(), path, {}).json()


@settings(deadline=None, max_examples=30)
@given(path=st.sampled_from(sorted(BODIES)), there=params.filter(bool))
def test_an_engine_without_a_connector_refuses_them(path: str, there: dict[str, Any]) -> None:
    body = {**BODIES[path], "kv_transfer_params": there}
    assert refused(bench_with(), path, body) == (400, "kv_transfer_params", "unsupported_parameter")


@settings(deadline=None, max_examples=30)
@given(number=st.integers(2**64) | st.integers(max_value=-(2**63) - 1), deep=st.booleans())
def test_numbers_that_no_frame_holds_are_refused(number: int, deep: bool) -> None:
    body = {**BODIES["/v1/completions"], "kv_transfer_params": {"a": [{"b": number}] if deep else number}}
    found = refused(bench_with("kv_transfer_params"), "/v1/completions", json.dumps(body).encode())
    assert found[:2] == (400, "kv_transfer_params")


@pytest.mark.parametrize("wrong", [1, "a", [{}]])
def test_they_are_an_object(wrong: Any) -> None:
    body = {**BODIES["/v1/completions"], "kv_transfer_params": wrong}
    assert refused(bench_with("kv_transfer_params"), "/v1/completions", body)[:2] == (400, "kv_transfer_params")


@settings(deadline=None, max_examples=20)
@given(path=st.sampled_from(sorted(BODIES)), priority=st.integers(-(2**63), 2**63 - 1), has_queue=st.booleans())
def test_an_engine_with_a_queue_by_priority_is_told_it(path: str, priority: int, has_queue: bool) -> None:
    bench = bench_with(*(("priority",) if has_queue else ()))
    answer(bench, path, {"priority": priority})
    assert bench.engine.requests[0].priority == (priority if has_queue else 0)


@settings(deadline=None, max_examples=20)
@given(path=st.sampled_from(sorted(BODIES)), accepted=st.integers(0, 50), rejected=st.integers(0, 50))
def test_drafts_that_an_engine_tells_of_are_in_the_usage(path: str, accepted: int, rejected: int) -> None:
    counts = {"num_draft_tokens": accepted + rejected, "num_accepted_tokens": accepted}
    details = answer(bench_with(), path, {}, **counts).json()["usage"]["completion_tokens_details"]
    told = {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}
    assert details == {"reasoning_tokens": 0, **(told if accepted + rejected else {})}


def test_what_comes_at_the_end_is_found_behind_a_stop_string_search() -> None:
    """A delta of several tokens is taken apart there."""
    counts = {"num_draft_tokens": 5, "num_accepted_tokens": 2, "kv_transfer_params": {"a": 1}}
    found = answer(bench_with("kv_transfer_params"), "/v1/completions", {"stop": "x"}, **counts).json()
    assert found["kv_transfer_params"] == {"a": 1}
    assert found["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == 2
