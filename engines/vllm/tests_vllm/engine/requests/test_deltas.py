"""Deltas of vLLM's outputs."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core.engine_types import Grammar, Logprobs, TokenDelta
from openai_bls.engines.not_finite import NotFiniteError
from openai_bls_vllm.clients import async_llm
from openai_bls_vllm.requests.deltas import Cursor
from openai_bls_vllm.requests.live_requests import LiveRequests
from openai_bls_vllm.requests.sampling import Runner
from tests.prompt_logprobs import unpacked
from tests_vllm.engine.vllm_support import INFO, CoreOutput, Event, Prefill, asked


def output(*tokens: int, reason: str | None = None, **more: Any) -> CoreOutput:
    return CoreOutput("0", list(tokens), finish_reason=reason, **more)


def run(cursor: Cursor, *outputs: CoreOutput) -> list[TokenDelta]:
    """The deltas up to the one with a finish reason."""
    found = []
    for one in outputs:
        delta = cursor.advance(one)
        if delta is not None:
            found.append(delta)
            if delta.finish_reason is not None:
                break
    return found


def rows(*places: tuple[list[int], list[float]]) -> tuple[Any, Any]:
    return np.array([ids for ids, _ in places], np.int32), np.array([values for _, values in places], np.float32)


def test_the_first_delta_tells_of_the_prompt() -> None:
    cursor = Cursor(asked())
    first = output(4, prefill_stats=Prefill(3), events=[Event(1, 10.0), Event(2, 10.5), Event(3, 11.0)])
    deltas = run(cursor, output(), first, output(5, 6, prefill_stats=Prefill(3)))
    assert [delta.token_ids for delta in deltas] == [[4], [5, 6]]
    assert (deltas[0].cached_tokens, deltas[0].queue_s) == (3, 0.5)
    assert (deltas[1].cached_tokens, deltas[1].queue_s) == (0, None)
    assert cursor.plain


def test_a_stop_token_goes_before_a_stop_word_of_it() -> None:
    end = run(Cursor(asked(stop_words=((9,),), stop_token_ids=(9,))), output(4, 9, reason="stop"))[-1]
    assert (end.token_ids, end.stop_token_id) == ([4], 9)


def test_a_grammar_ends_by_the_tokenizers_end_token() -> None:
    cursor = Cursor(asked(grammar=Grammar("regex", "a"), stop_token_ids=(9,)))
    end = run(cursor, output(4, 2, reason="stop", stop_reason=2))[-1]
    assert (end.token_ids, end.finish_reason, end.stop_token_id) == ([4], "stop", None)


@pytest.mark.parametrize("reason", ["abort", "error", "repetition"])
def test_what_vllm_ends_by_itself_is_an_error(reason: str) -> None:
    deltas = run(Cursor(asked()), output(4), output(5, reason=reason))
    assert (deltas[-1].finish_reason, deltas[-1].invalid) == ("error", False)
    assert deltas[-1].error


def test_a_grammar_that_does_not_compile_is_the_requests_fault() -> None:
    cursor = Cursor(asked(grammar=Grammar("regex", "a")))
    assert run(cursor, output(reason="error"))[0].invalid
    cursor = Cursor(asked(grammar=Grammar("regex", "a")))
    assert not run(cursor, output(4), output(reason="error"))[-1].invalid


def test_logprobs_have_as_many_rivals_as_were_asked_for() -> None:
    """vLLM's rows are as wide as the widest request of the batch."""
    wide = rows(([4, 8, 4, 3], [-1.0, -0.5, -1.0, -2.0]), ([5, 5, 7, 6], [-0.25, -0.25, -3.0, -4.0]))
    (delta,) = run(Cursor(asked(logprobs=2)), output(4, 5, new_logprobs=wide))
    assert delta.logprobs is not None
    assert delta.logprobs.token_logprobs == [-1.0, -0.25]
    assert delta.logprobs.top_token_ids == [[8, 4], [5, 7]]
    assert delta.logprobs.top_logprobs == [[-0.5, -1.0], [-0.25, -3.0]]
    (own,) = run(Cursor(asked(logprobs=0)), output(4, 5, new_logprobs=wide))
    assert own.logprobs is not None
    assert own.logprobs.top_token_ids == [[], []]


def test_logprobs_of_what_is_delivered_alone() -> None:
    places = rows(([4], [-1.0]), ([5], [-2.0]), ([6], [-3.0]))
    request = asked(logprobs=0, stop_words=((5,),))
    (end,) = run(Cursor(request), output(4, 5, 6, new_logprobs=places))
    assert end.logprobs is not None
    assert end.logprobs.token_logprobs == [-1.0, -2.0]
    (stopped,) = run(Cursor(asked(logprobs=0, stop_token_ids=(4,))), output(4, reason="stop", new_logprobs=places))
    assert stopped.logprobs is None
    with pytest.raises(ValueError, match="1 of 2 tokens"):
        run(Cursor(asked(logprobs=0)), output(4, 5, new_logprobs=rows(([4], [-1.0]))))


def test_a_stop_word_ends_before_what_follows_it() -> None:
    cursor = Cursor(asked(stop_words=((5, 6), (8,))))
    deltas = run(cursor, output(4, 5), output(6, 7, 8), output(1))
    assert [delta.token_ids for delta in deltas] == [[4, 5], [6]]
    assert (deltas[-1].finish_reason, deltas[-1].stop_token_id) == ("stop", None)
    assert not cursor.plain


def test_a_stop_word_waits_for_min_tokens() -> None:
    deltas = run(Cursor(asked(stop_words=((5,),), min_tokens=3)), output(4, 5), output(6, 5, 7), output(5))
    assert [delta.token_ids for delta in deltas] == [[4, 5], [6, 5]]


@pytest.mark.parametrize("prompt", [[5], [5, 6, 7]])
def test_a_prompt_alone(prompt: list[int]) -> None:
    tensors = rows(([6], [-1.0]), ([7], [-2.0])) if len(prompt) > 1 else None
    request = asked(max_tokens=0, prompt_logprobs=0, prompt_token_ids=prompt)
    (delta,) = run(Cursor(request), output(4, reason="length", new_prompt_logprobs_tensors=tensors))
    assert (delta.token_ids, delta.finish_reason) == ([], "length")
    assert len(unpacked(delta.prompt_logprobs).token_logprobs) == len(prompt) - 1


def test_a_prompt_has_as_many_rivals_as_were_asked_for() -> None:
    wide = rows(([6, 8, 6], [-1.0, -0.5, -1.0]), ([7, 7, 5], [-np.inf, -0.25, -3.0]))
    request = asked(max_tokens=0, prompt_logprobs=1, prompt_token_ids=[5, 6, 7])
    (delta,) = run(Cursor(request), output(4, reason="length", new_prompt_logprobs_tensors=wide))
    assert unpacked(delta.prompt_logprobs) == Logprobs([-1.0, -np.inf], [[8], [7]], [[-0.5], [-0.25]])
    nan = rows(([6], [-1.0]), ([7], [np.nan]))
    with pytest.raises(NotFiniteError):
        run(Cursor(request), output(4, reason="length", new_prompt_logprobs_tensors=nan))


@given(st.integers(0, 700), st.integers(0, 3))
def test_a_long_prompt_of_the_public_client_is_read_in_turns(length: int, k: int) -> None:
    """vLLM's mappings have the token itself, and it may be among the likeliest."""
    token_ids = [at % 11 for at in range(length)]
    places: list[Any] = [None]
    for at in range(1, length):
        others = {
            (token_ids[at] + rank) % 11: SimpleNamespace(rank=rank, logprob=-rank / 4) for rank in range(1, k + 1)
        }
        places.append({**others, token_ids[at]: SimpleNamespace(rank=None, logprob=-at / 8)})
    generation: Any = SimpleNamespace(prompt_token_ids=token_ids, params={"prompt_logprobs": k})

    async def read() -> tuple[Any, int]:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        found = await async_llm.prompt_rows(places[:length], generation)
        task.cancel()
        return found, turns

    found, turns = asyncio.run(read())
    assert turns >= (length - 1) // 256
    if length < 2:
        assert found is None
        return
    ids, values = found
    assert ids.tolist() == [[one, *((one + rank) % 11 for rank in range(1, k + 1))] for one in token_ids[1:]]
    assert values.tolist() == [[-at / 8, *(-rank / 4 for rank in range(1, k + 1))] for at in range(1, length)]


def test_logits_that_are_not_finite() -> None:
    """By vLLM's count, or by a log-probability where some were asked for; minus infinity is a token ruled out."""
    found = rows(([4, 5], [-0.5, -np.inf]))
    (delta,) = run(Cursor(asked(logprobs=1)), output(4, new_logprobs=found))
    assert delta.logprobs is not None
    assert delta.logprobs.top_logprobs == [[-np.inf]]
    with pytest.raises(NotFiniteError):
        run(Cursor(asked(logprobs=1)), output(0, new_logprobs=rows(([0, 1], [np.nan, np.nan]))))
    counted = output(5, num_nans_in_logits=7)
    with pytest.raises(NotFiniteError):
        run(Cursor(asked()), output(4), counted)
    live = LiveRequests(lambda: "tiny")
    for number in (1, 2):
        live.start(asked(request_id=number), INFO, Runner(), None)
    live.advance([CoreOutput("0", [3]), CoreOutput("1", [3])])
    step = live.advance([counted, CoreOutput("1", [4])])
    assert step.stopped == ["0"]
    bad, good = step.deltas
    assert (bad.finish_reason, bad.invalid, good.token_ids) == ("error", False, [4])
    assert bad.error is not None
    assert bad.error.startswith("The model tiny computes NaN or infinity for this request")


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(0, 9))
def test_the_last_delta_tells_of_drafts_and_of_the_kv_cache(histogram: list[int], rejected: int) -> None:
    """Of each number of accepted tokens vLLM has the steps that had it."""
    accepted = sum(number * steps for number, steps in enumerate(histogram))
    metrics = SimpleNamespace(histogram=histogram, num_draft_tokens=accepted + rejected)
    last = output(5, reason="length", kv_transfer_params={"a": 1}, spec_decode_metrics=metrics)
    first, end = run(Cursor(asked()), output(4), last)
    assert (first.num_draft_tokens, first.num_accepted_tokens, first.kv_transfer_params) == (0, 0, None)
    assert (end.num_draft_tokens, end.num_accepted_tokens) == (accepted + rejected, accepted)
    assert end.kv_transfer_params == {"a": 1}


def test_a_prompt_alone_tells_of_its_kv_cache() -> None:
    (end,) = run(Cursor(asked(max_tokens=0)), output(4, reason="length", kv_transfer_params={"a": 1}))
    assert end.kv_transfer_params == {"a": 1}
