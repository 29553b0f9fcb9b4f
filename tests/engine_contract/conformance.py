"""The `Engine` contract, as tests that an engine's test class inherits.

A subclass has the fixture `started`: an engine of `support.MAX_MODEL_LEN` tokens, 16 sequences and the tiny checkpoint,
and its recorder.
"""

from __future__ import annotations

import contextlib
import random
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from openai_bls.core.engine import Engine
from openai_bls.core.engine_types import EngineInfo, Grammar, SamplingParams, TokenDelta
from openai_bls.core.logprobs import row_count
from openai_bls.engines.capabilities import RANGES
from tests.engine_contract.support import MAX_MODEL_LEN, Recorder, request
from tests.prompt_logprobs import unpacked

Started = tuple[Engine, Recorder]


def greedy_tokens(started: Started, count: int = 12) -> list[int]:
    """What the engine answers to the usual prompt."""
    engine, recorder = started
    engine.submit(request(900, max_tokens=count))
    recorder.wait_end(900)
    return recorder.tokens[900]


@contextlib.contextmanager
def behind_others(started: Started) -> Iterator[None]:
    """Requests of this block wait for places while it lasts: so many came before them that not all of these can end."""
    engine, recorder = started
    ids = range(10_000, 10_300 + engine.info.max_batch_size)
    for i in ids:
        engine.submit(request(i, max_tokens=450))
    yield
    for i in ids:
        engine.cancel(i)
    recorder.wait_end(*ids)


def invalid_fields(info: EngineInfo) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names of fields, each with fields of a request that are refused for it."""
    vocab_size, longest = info.vocab_size, info.max_model_len
    for name, allowed in RANGES.items():
        numbers = [allowed.least - 1, *(allowed.least,) * allowed.above]
        if not isinstance(getattr(SamplingParams(), name), int | None):
            numbers += [allowed.most * 2, float("nan")]
        for number in numbers:
            value: Any = {1: number} if name == "logit_bias" else number
            yield name, {"sampling": SamplingParams(**{name: value})}
    for changes in ({"seed": 1 << 64}, {"logit_bias": {-1: 1.0}}, {"logit_bias": {vocab_size: 1.0}}):
        yield next(iter(changes)), {"sampling": SamplingParams(**changes)}
    fields: dict[str, tuple[dict[str, Any], ...]] = {
        "prompt_token_ids": ({"prompt": ()}, {"prompt": (1, vocab_size)}, {"prompt": (1, -1)}),
        "max_tokens": ({"max_tokens": -1}, {"prompt": [1] * 10, "max_tokens": longest - 9}),
        "stop_token_ids": ({"stop_token_ids": (vocab_size,)},),
        "stop_words": ({"stop_words": ((),)}, {"stop_words": ((1, vocab_size),)}),
        "bad_words": (
            {"bad_words": ((-3,),)},
            {"bad_words": tuple((5, i) for i in range(vocab_size))},
            {"bad_words": tuple((i,) for i in range(3, vocab_size)), "stop_token_ids": (0, 1, 2), "min_tokens": 1},
        ),
        "min_tokens": ({"max_tokens": 3, "min_tokens": 4}, {"min_tokens": -1}),
        "allowed_token_ids": ({"allowed_token_ids": (vocab_size,)},),
        "logprobs": ({"logprobs": 21}, {"logprobs": -1}),
        "prompt_logprobs": ({"prompt_logprobs": 21},),
        "lora_name": ({"lora_name": "nobody"},),
        "pooling": ({"pooling": "last"},),
    }
    if {"bad_words", "min_tokens"} <= set(info.supported):
        # Else these are refused for those.
        fields["allowed_token_ids"] += (
            {"allowed_token_ids": (3, 4), "bad_words": ((3,), (9, 4))},
            {"allowed_token_ids": (3, 2), "bad_words": ((3,),), "stop_token_ids": (2,), "min_tokens": 1},
        )
    for name, bad in fields.items():
        yield from ((name, asked) for asked in bad)
    if not info.grammar_backend:
        yield "grammar", {"grammar": Grammar(kind="regex", text="a")}


class RequestContract:
    """What an engine does with requests; it may serve several tests."""

    def test_length_is_exact(self, started: Started) -> None:
        engine, recorder = started
        before = engine.stats()
        counts = (1, 2, 9, 5)
        for count in counts:
            prompt = [3] * (engine.info.max_model_len - 5) if count == 5 else (5, 6, 7)
            engine.submit(request(count, prompt=prompt, max_tokens=count))
        recorder.wait_end(*counts)
        assert [len(recorder.tokens[i]) for i in counts] == [*counts]
        assert {recorder.reason(i) for i in counts} == {"length"}
        after = engine.stats()
        assert after.generated_tokens - before.generated_tokens == sum(counts)
        assert after.steps > before.steps
        assert 0 <= after.kv_cache_usage <= 1
        # Both or neither, and no sequence is longer than the cache.
        assert after.kv_blocks * after.kv_block_size >= engine.info.max_model_len or not (
            after.kv_blocks or after.kv_block_size
        )

    def test_more_requests_than_the_batch_holds(self, started: Started) -> None:
        engine, recorder = started
        ids = range(engine.info.max_batch_size * 2 + 3)
        for i in ids:
            engine.submit(request(i, prompt=(i + 1, 2, 3), max_tokens=3 + i % 5))
        recorder.wait_end(*ids)
        assert [len(recorder.tokens[i]) for i in ids] == [3 + i % 5 for i in ids]
        spans = [[n for n, step in enumerate(recorder.steps) if any(d.request_id == i for d in step)] for i in ids]
        overlapping = [(a, b) for a in ids for b in ids if a < b and spans[a][0] <= spans[b][0] <= spans[a][-1]]
        assert overlapping, "never batched"

    def test_one_thread_calls_the_listener(self, started: Started) -> None:
        engine, recorder = started
        engine.submit(request(1))
        engine.submit(request(2, prompt=()))
        engine.submit(request(3, max_tokens=100))
        engine.cancel(3)
        recorder.wait_end(1, 2, 3)
        assert len(recorder.threads) == 1
        assert recorder.threads != {threading.get_ident()}

    def test_cancel_while_running(self, started: Started) -> None:
        engine, recorder = started

        def cancel_at_once(deltas: Sequence[TokenDelta]) -> None:
            if any(delta.request_id == 1 and delta.token_ids for delta in deltas):
                engine.cancel(1)

        recorder.after = cancel_at_once
        engine.submit(request(1, max_tokens=400))
        engine.submit(request(2, max_tokens=30))
        recorder.wait_end(1, 2)
        assert recorder.reason(1) == "cancelled"
        assert 1 <= len(recorder.tokens[1]) < 400
        assert recorder.reason(2) == "length"
        assert len(recorder.tokens[2]) == 30

    def test_cancel_before_the_first_step(self, started: Started) -> None:
        engine, recorder = started
        with behind_others(started):
            for i in range(20):
                engine.submit(request(i, max_tokens=400))
                engine.cancel(i)
            recorder.wait_end(*range(20))
        assert {recorder.reason(i) for i in range(20)} == {"cancelled"}

    def test_an_id_is_free_again_after_its_end(self, started: Started) -> None:
        engine, recorder = started
        engine.cancel(77)
        for _ in range(3):
            engine.submit(request(1, max_tokens=400))
            engine.cancel(1)
            recorder.wait_end(1)
            engine.cancel(1)  # no longer live
            recorder.forget([1])
            engine.submit(request(1, max_tokens=4))
            recorder.wait_end(1)
            assert len(recorder.tokens[1]) == 4
            recorder.forget([1])
        assert not recorder.ends

    def test_a_live_id_has_one_end(self, started: Started) -> None:
        engine, recorder = started
        with behind_others(started):
            engine.submit(request(1, max_tokens=40))
            engine.submit(request(1, max_tokens=40))
            engine.submit(request(1, prompt=()))
            engine.submit(request(2, max_tokens=60))
        recorder.wait_end(1, 2)
        assert len(recorder.tokens[1]) in (40, 0)

    @pytest.mark.parametrize("position", [0, 3, 7])
    @pytest.mark.parametrize("more", [0, 4])
    def test_the_first_of_several_stop_tokens_ends_it(self, started: Started, position: int, more: int) -> None:
        """Also as the last token allowed."""
        tokens = greedy_tokens(started)
        position = tokens.index(tokens[position])
        engine, recorder = started
        unseen = next(i for i in range(engine.info.vocab_size) if i not in tokens)
        later = [token for token in tokens[:position:-1] if token not in tokens[: position + 1]]
        engine.submit(request(1, max_tokens=position + 1 + more, stop_token_ids=(unseen, *later, tokens[position])))
        recorder.wait_end(1)
        assert recorder.tokens[1] == tokens[:position]
        assert recorder.ends[1].finish_reason == "stop"
        assert recorder.ends[1].stop_token_id == tokens[position]

    @pytest.mark.parametrize("length", [1, 3])
    def test_stop_word_is_delivered(self, started: Started, length: int) -> None:
        tokens = greedy_tokens(started)
        engine, recorder = started
        word = tuple(tokens[4 : 4 + length])
        end = next(i + length for i in range(12) if tuple(tokens[i : i + length]) == word)
        engine.submit(request(1, max_tokens=300, stop_words=((tokens[1], 0, 0), word)))
        recorder.wait_end(1)
        assert recorder.tokens[1] == tokens[:end]
        assert recorder.ends[1].finish_reason == "stop"
        assert recorder.ends[1].stop_token_id is None

    def test_invalid_requests_name_the_field(self, started: Started) -> None:
        engine, recorder = started
        for field, asked in invalid_fields(engine.info):
            engine.submit(request(1, **asked))
            recorder.wait_end(1)
            end = recorder.ends[1]
            assert end.invalid, field
            assert field in (end.error or "")
            recorder.forget([1])

    @pytest.mark.parametrize("count", [0, 1, 20])
    def test_logprobs(self, started: Started, count: int) -> None:
        engine, recorder = started
        count = min(count, engine.info.max_logprobs)
        of_prompt = "prompt_logprobs" in engine.info.supported
        engine.submit(request(1, max_tokens=9, logprobs=count, prompt_logprobs=count if of_prompt else None))
        engine.submit(request(2, max_tokens=9))
        recorder.wait_end(1, 2)
        pairs = [(recorder.logprobs(1), recorder.tokens[1])]
        prompt_logprobs = recorder.deltas(1)[0].prompt_logprobs
        assert (prompt_logprobs is not None) == of_prompt
        if prompt_logprobs is not None:
            pairs.append((unpacked(prompt_logprobs), [6, 7]))
        for found, tokens in pairs:
            assert len(found.token_logprobs) == len(tokens)
            for token, own, ids, values in zip(
                tokens, found.token_logprobs, found.top_token_ids, found.top_logprobs, strict=True
            ):
                assert len(ids) == len(values) == count
                assert values == sorted(values, reverse=True)
                assert max([own, *values]) <= 0
                if token in ids:
                    assert values[ids.index(token)] == pytest.approx(own)
        if count:  # greedy
            assert [ids[0] for ids in recorder.logprobs(1).top_token_ids] == recorder.tokens[1]
        assert all(delta.logprobs is None and delta.prompt_logprobs is None for delta in recorder.deltas(2))

    def test_logprobs_of_a_stopped_sequence(self, started: Started) -> None:
        tokens = greedy_tokens(started)
        engine, recorder = started
        count = min(2, engine.info.max_logprobs)
        of_prompt = "prompt_logprobs" in engine.info.supported
        engine.submit(
            request(
                1, max_tokens=12, stop_token_ids=(tokens[0],), logprobs=count, prompt_logprobs=0 if of_prompt else None
            )
        )
        engine.submit(request(2, max_tokens=12, stop_words=(tuple(tokens[3:5]),), logprobs=count))
        recorder.wait_end(1, 2)
        assert recorder.tokens[1] == []
        assert recorder.reason(1) == "stop"
        assert recorder.ends[1].logprobs is None
        found = recorder.ends[1].prompt_logprobs
        assert (None if found is None else unpacked(found).top_token_ids) == ([[], []] if of_prompt else None)
        assert len(recorder.logprobs(2).token_logprobs) == len(recorder.tokens[2])

    def test_a_bias_brings_a_token_with_the_models_own_logprob(self, started: Started) -> None:
        """What reads a token that is not among the likeliest, as decisions do."""
        engine, recorder = started
        engine.submit(request(1, max_tokens=1, logprobs=engine.info.max_logprobs))
        recorder.wait_end(1)
        (ids,), (values,) = recorder.logprobs(1).top_token_ids, recorder.logprobs(1).top_logprobs
        for number, (token, value) in enumerate(zip(ids[1::6], values[1::6], strict=True), start=2):
            sampling = SamplingParams(temperature=0, logit_bias={token: 100})
            engine.submit(request(number, max_tokens=1, logprobs=0, sampling=sampling))
            recorder.wait_end(number)
            if recorder.ends[number].invalid:
                assert re.search("logit_bias|logprobs", recorder.ends[number].error or "")
                continue
            assert recorder.tokens[number] == [token]
            assert recorder.logprobs(number).token_logprobs == pytest.approx([value], abs=1e-3)

    def test_nothing_to_sample(self, started: Started) -> None:
        engine, recorder = started
        before, longest = engine.stats().generated_tokens, engine.info.max_model_len
        engine.submit(request(1, max_tokens=0))
        engine.submit(request(2, max_tokens=0, prompt_logprobs=3, prompt=(5,)))
        engine.submit(request(3, max_tokens=0, prompt_logprobs=3, prompt=[3] * longest))
        recorder.wait_end(1, 2, 3)
        of_prompt = "prompt_logprobs" in engine.info.supported
        for i, entries in ((1, None), (2, 0), (3, longest - 1)):
            (delta,) = recorder.deltas(i)
            # vLLM needs room for one more token.
            if entries is not None and (not of_prompt or (engine.info.engine == "vllm" and i == 3)):
                assert delta.invalid
                assert "prompt_logprobs" in (delta.error or "")
                continue
            assert (delta.token_ids, delta.finish_reason, delta.logprobs) == ([], "length", None)
            assert (None if delta.prompt_logprobs is None else row_count(delta.prompt_logprobs)) == entries
        assert engine.stats().generated_tokens == before

    def test_min_tokens(self, started: Started) -> None:
        tokens = greedy_tokens(started)
        engine, recorder = started
        stops: tuple[int, ...] = (tokens[2], tokens[6])
        if engine.info.engine == "tensorrt_llm":
            # It holds back one, and says so.
            engine.submit(request(4, max_tokens=20, stop_token_ids=stops, min_tokens=5))
            recorder.wait_end(4)
            assert recorder.ends[4].invalid
            assert "min_tokens is not supported" in (recorder.ends[4].error or "")
            stops = (tokens[2],)
        engine.submit(request(1, max_tokens=20, stop_token_ids=stops, min_tokens=5))
        engine.submit(request(2, max_tokens=4, stop_token_ids=stops, min_tokens=4))
        engine.submit(request(3, max_tokens=9, stop_words=((tokens[1],), (tokens[7],)), min_tokens=5))
        recorder.wait_end(1, 2, 3)
        assert len(recorder.tokens[1]) >= 5
        assert not set(recorder.tokens[1]) & set(stops)
        assert len(recorder.tokens[2]) == 4
        assert recorder.reason(2) == "length"
        end = next((i + 1 for i in range(4, 9) if tokens[i] in (tokens[1], tokens[7])), 9)
        assert recorder.tokens[3] == tokens[:end]

    def test_races_of_submit_and_cancel(self, started: Started) -> None:
        engine, recorder = started
        rng = random.Random(1)
        wanted = {i: rng.randint(1, 12) for i in range(240)}

        def work(ids: list[int], seed: int) -> None:
            own = random.Random(seed)
            for i in ids:
                engine.submit(request(i, prompt=(1 + i % 100, 2), max_tokens=wanted[i]))
                if own.random() < 0.5:
                    engine.cancel(own.choice(ids))

        threads = [threading.Thread(target=work, args=(list(range(k, 240, 3)), k)) for k in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        recorder.wait_end(*wanted)
        for i, count in wanted.items():
            if recorder.reason(i) == "length":
                assert len(recorder.tokens[i]) == count
            else:
                assert recorder.reason(i) == "cancelled"
        # A last request after which nothing may be left over.
        engine.submit(request(999, max_tokens=3))
        recorder.wait_end(999)
        engine.submit(request(1000, max_tokens=3))
        recorder.wait_end(1000)
        assert engine.stats().waiting == 0
        assert engine.stats().running <= 1

    def test_a_listener_that_raises_does_no_harm(self, started: Started) -> None:
        engine, recorder = started

        def fail(deltas: Sequence[TokenDelta]) -> None:
            raise RuntimeError("a listener's bug")

        recorder.after = fail
        engine.submit(request(1, max_tokens=5))
        recorder.wait_end(1)
        assert len(recorder.tokens[1]) == 5


class EngineContract(RequestContract):
    """All of the contract: each test has an engine, which the last ones close, for another takes seconds to start."""

    def test_info(self, started: Started) -> None:
        info = started[0].info
        assert info.max_model_len == MAX_MODEL_LEN
        assert info.max_batch_size == 16
        assert info.model_name == "tiny-qwen"
        assert {"stop_token_ids", "stop_words", "seed"} <= set(info.supported)

    def test_close_with_live_requests(self, started: Started) -> None:
        engine, recorder = started
        ids = range(engine.info.max_batch_size + 300)  # so many that they cannot all have ended
        for i in ids:
            engine.submit(request(i, prompt=[i % 50 + 1] * 10, max_tokens=450))
        recorder.wait_tokens(0)
        engine.close()
        assert set(ids) <= set(recorder.ends)
        assert "cancelled" in {recorder.reason(i) for i in ids}
        assert {recorder.reason(i) for i in ids} <= {"cancelled", "length"}
        engine.close()
        engine.cancel(3)
        engine.submit(request(5000))
        assert recorder.reason(5000) == "cancelled"
        engine.submit(request(5001, prompt=()))
        assert recorder.ends[5001].finish_reason is not None

    def test_a_listener_that_submits_and_closes(self, started: Started) -> None:
        """Both while it is told of a refusal, which the engine gives between two steps."""
        engine, recorder = started

        def submit_and_close(deltas: Sequence[TokenDelta]) -> None:
            if any(delta.request_id == 1 for delta in deltas):
                engine.submit(request(2, max_tokens=400))
                engine.close()

        engine.submit(request(0, max_tokens=450))
        recorder.wait_tokens(0)
        recorder.after = submit_and_close
        engine.submit(request(1, prompt=()))
        recorder.wait_end(0, 1, 2)
        assert recorder.ends[1].invalid

    def test_close_from_many_threads_and_submit_meanwhile(self, started: Started) -> None:
        engine, recorder = started
        barrier = threading.Barrier(4)

        def submit(first: int) -> None:
            barrier.wait()
            for i in range(first, first + 50):
                engine.submit(request(i, max_tokens=100))

        def close() -> None:
            barrier.wait()
            engine.close()

        threads = [threading.Thread(target=submit, args=(i * 100,)) for i in range(2)]
        threads += [threading.Thread(target=close) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        recorder.wait_end(*range(50), *range(100, 150))
