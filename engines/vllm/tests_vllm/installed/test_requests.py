"""Requests in flight on vLLM: many that are cancelled, the prefix cache, grammars."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence

import pytest

from benchmarks.support.asking import Asker
from openai_bls.core.engine import PrefixCacheError
from openai_bls.core.engine_types import Grammar, TokenDelta
from tests.paths import DEMO
from tests_vllm.installed import cases
from tests_vllm.installed.conftest import LIMIT_S, Served

pytestmark = pytest.mark.timeout(1800)

COLOUR = Grammar("regex", "(red|green|blue)-[0-9]{2,4}")
NUMBERS = Grammar("json_schema", '{"type": "array", "items": {"type": "integer"}, "maxItems": 4}')


def test_cancellation_under_load(vllm: Served) -> None:
    """All of a full batch end at once when they are cancelled, and leave nothing behind."""
    begun = threading.Condition()
    seen: set[int] = set()

    def listen(deltas: Sequence[TokenDelta]) -> None:
        vllm.asker.on_step(deltas)
        with begun:
            seen.update(delta.request_id for delta in deltas if delta.token_ids)
            begun.notify_all()

    vllm.engine._on_step = listen
    live = [vllm.asker.submit(cases.asked(cases.prompt(i, 40), 1900)) for i in range(48)]
    with begun:
        assert begun.wait_for(lambda: len(seen) >= 40, LIMIT_S)
    with pytest.raises(PrefixCacheError) as caught:
        vllm.engine.reset_prefix_cache()
    assert caught.value.busy
    stats = vllm.engine.stats()
    assert stats.running + stats.waiting == 48
    assert 0 < stats.kv_cache_usage < 1
    assert 0 < stats.kv_blocks_used < stats.kv_blocks
    assert stats.kv_blocks * stats.kv_block_size >= vllm.engine.info.max_model_len
    for request_id in list(vllm.asker._live):
        vllm.engine.cancel(request_id)
    vllm.asker.wait(LIMIT_S)
    assert {answer.reason for answer in live} == {"cancelled"}
    (answer,) = vllm.ask([cases.asked(cases.prompt(0), 4)])
    assert answer.reason == "length"
    stats = vllm.engine.stats()
    assert (stats.running, stats.waiting, stats.kv_cache_usage) == (0, 0, 0)


def test_the_prefix_cache_is_found_and_forgotten(vllm: Served) -> None:
    request = cases.asked(cases.prompt(190, 600), 2)
    assert vllm.ask([request])[0].cached_tokens == 0
    assert 0 < vllm.ask([request])[0].cached_tokens < 600
    vllm.engine.reset_prefix_cache()
    assert vllm.ask([request])[0].cached_tokens == 0


@pytest.mark.parametrize("stops", [(2, 0), (0,), ()])
def test_a_grammar_is_followed_to_its_end(vllm: Served, stops: tuple[int, ...]) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    asked = [
        cases.asked(cases.prompt(i), 60, temperature=1.0, seed=i, grammar=COLOUR, stop_token_ids=stops)
        for i in range(8)
    ]
    for answer in vllm.ask(asked):
        assert answer.error is None
        assert answer.reason == "stop"
        assert re.fullmatch(COLOUR.text, tokenizer.decode(answer.tokens)), answer.tokens
        assert answer.stop_token_id in (*stops, None)


def test_min_tokens_with_a_grammar_are_as_in_the_embedded_engine(vllm: Served, embedded: Asker) -> None:
    """Of each grammar fewer tokens than it has, and more than it can have: there it counts."""
    asked = [
        cases.asked(cases.prompt(i, 8), 60, grammar=wanted, min_tokens=least, stop_token_ids=(2, 0))
        for wanted in (
            Grammar("regex", ""),
            Grammar("regex", "[a-z]{0,9}"),
            Grammar("regex", "[a-z ]*"),
            COLOUR,
            NUMBERS,
        )
        for i, least in enumerate((1, 3, 8, 50))
    ]
    for request, found, wanted in zip(asked, vllm.ask(asked), embedded.ask(asked, LIMIT_S), strict=True):
        assert found.error is None, request
        assert (found.tokens, found.reason) == (wanted.tokens, wanted.reason), request


def test_allowed_tokens_are_the_only_ones(vllm: Served, embedded: Asker) -> None:
    """The embedded engine has every other token's score lowered."""
    prompts = [cases.prompt(30 + i) for i in range(4)]
    allowed = [tuple(cases.prompt(40 + i, 2 + 40 * i)) + (2,) * (i % 2) for i in range(4)]
    asked = [
        cases.asked(ids, 20, allowed_token_ids=some, stop_token_ids=(2,), min_tokens=5)
        for ids, some in zip(prompts, allowed, strict=True)
    ]
    size = vllm.engine.info.vocab_size
    lowered = [
        cases.asked(
            ids,
            20,
            logit_bias=dict.fromkeys(set(range(size)).difference(some), -100.0),
            stop_token_ids=(2,),
            min_tokens=5,
        )
        for ids, some in zip(prompts, allowed, strict=True)
    ]
    for found, wanted, some in zip(vllm.ask(asked), embedded.ask(lowered, LIMIT_S), allowed, strict=True):
        assert found.error is None
        assert (found.tokens, found.reason) == (wanted.tokens, wanted.reason)
        assert set(found.tokens) <= set(some)
    (refused,) = vllm.ask([cases.asked(prompts[0], 20, allowed_token_ids=(2,), stop_token_ids=(2,), min_tokens=1)])
    assert refused.reason == "error"


def test_a_grammar_that_does_not_compile_is_the_requests_fault(vllm: Served) -> None:
    bad = [cases.asked(cases.prompt(1), 9, grammar=Grammar("lark", "start: nothing"))]
    good = [cases.asked(cases.prompt(i), 30) for i in range(3)]
    answers = vllm.ask(good + bad)
    assert [answer.reason for answer in answers] == ["length"] * 3 + ["error"]
    assert "nothing" in (answers[-1].error or "")
