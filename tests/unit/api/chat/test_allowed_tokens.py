"""`allowed_token_ids`: they reach the engine, and some of them are left to sample."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.core.engine_types import PromptResult
from tests.unit.api.http_support import asked, refused
from tests.unit.core_support import EOS, VOCAB_SIZE, Bench, engine_info

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
}
ids = st.integers(0, VOCAB_SIZE - 1)


@settings(deadline=None, max_examples=40)
@given(
    path=st.sampled_from(sorted(BODIES)),
    allowed=st.lists(ids, min_size=1, max_size=4),
    stops=st.lists(ids, max_size=3),
    least=st.integers(0, 2),
    ignore_eos=st.booleans(),
)
def test_they_reach_the_engine_unless_none_may_be_sampled(
    path: str, allowed: list[int], stops: list[int], least: int, ignore_eos: bool
) -> None:
    bench = Bench()
    body = {**BODIES[path], "allowed_token_ids": allowed, "stop_token_ids": stops, "min_tokens": least}
    body["ignore_eos"] = ignore_eos
    ends = {*stops, *(() if ignore_eos else (EOS,))}
    if least and set(allowed) <= ends:
        assert refused(bench, path, body) == (400, "allowed_token_ids", None)
        return
    assert asked(bench, path, body, lambda: bench.engine.deliver(0, "a", "length")).status == 200
    assert bench.engine.requests[0].allowed_token_ids == tuple(dict.fromkeys(allowed))


@pytest.mark.parametrize("path", BODIES)
def test_none_is_outside_the_vocabulary(path: str) -> None:
    body = {**BODIES[path], "allowed_token_ids": [1, VOCAB_SIZE]}
    assert refused(Bench(), path, body) == (400, "allowed_token_ids", None)


@pytest.mark.parametrize(("allowed", "taken"), [([8], False), ([8, 6], False), ([8, 7], True)])
def test_bad_words_leave_one_of_them(allowed: list[int], taken: bool) -> None:
    bench = Bench()
    bench.prompts.result = PromptResult([[5]], [[7, 8], [6]])
    body = {"prompt": "hi", "bad_words": ["a"], "allowed_token_ids": allowed}
    if not taken:
        assert refused(bench, "/v1/completions", body) == (400, "allowed_token_ids", None)
        return
    assert asked(bench, "/v1/completions", body, lambda: bench.engine.deliver(0, "b", "length")).status == 200


def test_an_engine_without_them_refuses_them_by_name() -> None:
    info = engine_info(supported=("stop_token_ids",))
    body = {"prompt": "hi", "allowed_token_ids": [1]}
    assert refused(Bench(info), "/v1/completions", body) == (400, "allowed_token_ids", "unsupported_parameter")
