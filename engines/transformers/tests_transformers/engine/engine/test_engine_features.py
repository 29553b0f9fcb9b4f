"""Penalties, log-probabilities and what is said of prompts, held against transformers itself; steps in turn, and, where
that may matter, overlapping as on a GPU."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.generation.continuous_batching.scheduler import FIFOScheduler

from openai_bls.core.engine import PrefixCacheError
from openai_bls.core.engine_types import Logprobs, SamplingParams, TokenDelta
from openai_bls_transformers.model import prompt_forward
from tests.engine_contract.support import GREEDY, PATIENCE_S, VOCAB_SIZE, Recorder, request, run_all
from tests.prompt_logprobs import unpacked
from tests_transformers.engine.arrivals import run_together
from tests_transformers.engine.engine.test_engine import COUNT, PROMPTS, expected, generate, model
from tests_transformers.engine.overlapping import IN_EVERY_WAY, steps, ways
from tests_transformers.engine.restarts import counted_restarts

if TYPE_CHECKING:
    from tests.engine_contract.fixtures import EngineFactory

__all__ = ["expected", "model", "steps", "ways"]  # fixtures

EVERYTHING = SamplingParams(
    temperature=0.9,
    top_p=0.95,
    seed=11,
    repetition_penalty=1.2,
    presence_penalty=0.5,
    frequency_penalty=0.7,
    logit_bias={5: 2.0, 9: -100.0, 77: 1.5},
)


def first(recorder: Recorder, request_id: int) -> TokenDelta:
    return recorder.deltas(request_id)[0]


def logits_of(model: Any, tokens: Sequence[int]) -> torch.Tensor:
    """[tokens, vocabulary]."""
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=torch.tensor([list(tokens)])).logits[0]
    return logits.float()


def distribution(model: Any, tokens: Sequence[int]) -> torch.Tensor:
    """Log-probabilities of what follows each of `tokens`, [tokens, vocabulary]."""
    return logits_of(model, tokens).log_softmax(-1)


def check(found: Logprobs, tokens: Sequence[int], wanted: torch.Tensor, count: int) -> None:
    assert len(found.token_logprobs) == len(found.top_token_ids) == len(found.top_logprobs) == len(tokens)
    for i, token in enumerate(tokens):
        assert found.token_logprobs[i] == pytest.approx(float(wanted[i, token]), abs=1e-3)
        assert len(found.top_token_ids[i]) == len(found.top_logprobs[i]) == count
        assert found.top_logprobs[i] == pytest.approx(wanted[i].topk(count).values.tolist(), abs=1e-3)
        assert [float(wanted[i, t]) for t in found.top_token_ids[i]] == pytest.approx(found.top_logprobs[i], abs=1e-3)


def reference(model: Any, prompt: Sequence[int], count: int, sampling: SamplingParams) -> list[int]:
    """Greedy, by the definitions, a full forward pass a token; remembered for the other way of steps."""
    key = (tuple(prompt), count, repr(sampling))
    if key not in _REFERENCES:
        _REFERENCES[key] = compute_reference(model, prompt, count, sampling)
    return _REFERENCES[key]


_REFERENCES: dict[tuple[tuple[int, ...], int, str], list[int]] = {}


def compute_reference(model: Any, prompt: Sequence[int], count: int, sampling: SamplingParams) -> list[int]:
    output: list[int] = []
    for _ in range(count):
        scores = logits_of(model, [*prompt, *output])[-1].clone()
        for token, bias in sampling.logit_bias.items():
            scores[token] += bias
        for token in {*prompt, *output}:
            factor = sampling.repetition_penalty
            scores[token] = scores[token] * factor if scores[token] < 0 else scores[token] / factor
        for token in set(output):
            scores[token] -= sampling.presence_penalty + sampling.frequency_penalty * output.count(token)
        output.append(int(scores.argmax()))
    return output


@IN_EVERY_WAY
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0, presence_penalty=2.0),
        SamplingParams(temperature=0, frequency_penalty=1.1),
        SamplingParams(temperature=0, frequency_penalty=-0.6),
        SamplingParams(temperature=0, logit_bias={3: 8.0, 400: 8.0, 12: -100.0}),
        SamplingParams(
            temperature=0,
            **{
                name: getattr(EVERYTHING, name)
                for name in ("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias")
            },
        ),
    ],
    ids=["presence", "frequency", "negative frequency", "bias", "all"],
)
def test_changed_scores(start: EngineFactory, model: Any, expected: list[list[int]], sampling: SamplingParams) -> None:
    engine, recorder = start(max_num_tokens="48")
    prompts = PROMPTS[3:9]
    wanted = [reference(model, prompt, COUNT, sampling) for prompt in prompts]
    assert wanted != expected[3:9]
    requests = [request(i, prompt=p, max_tokens=COUNT, sampling=sampling) for i, p in enumerate(prompts)]
    plain = [request(50 + i, prompt=p, max_tokens=COUNT) for i, p in enumerate(prompts)]
    found = run_all(engine, recorder, [*requests, *plain])
    assert found[: len(prompts)] == wanted
    assert found[len(prompts) :] == expected[3:9]


@IN_EVERY_WAY
def test_the_whole_context_counts_after_a_restart(start: EngineFactory, model: Any) -> None:
    """Sequences are put back and computed again, their output a part of the prompt then."""
    engine, recorder = start(max_tokens_in_kv_cache="512")
    sampling = SamplingParams(temperature=0, repetition_penalty=1.1, frequency_penalty=0.3)
    rng = random.Random(8)
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(100)] for _ in range(6)]
    wanted = [reference(model, prompt, 75, sampling) for prompt in prompts[:2]]
    requests = [
        request(
            i, prompt=p, max_tokens=75, sampling=sampling, logprobs=2, min_tokens=75, stop_token_ids=(wanted[0][3],)
        )
        if i > 1
        else request(i, prompt=p, max_tokens=75, sampling=sampling, logprobs=2)
        for i, p in enumerate(prompts)
    ]
    with counted_restarts(engine) as restarts:
        found = run_together(engine, recorder, requests)
    assert restarts, "nothing was started again"
    assert found[:2] == wanted
    for i, prompt in enumerate(prompts):
        assert len(found[i]) == 75
        if i > 1:
            assert wanted[0][3] not in found[i]
        rows = distribution(model, [*prompt, *found[i]])[len(prompt) - 1 : -1]
        check(recorder.logprobs(i), found[i], rows, 2)


@IN_EVERY_WAY
def test_logprobs(start: EngineFactory, model: Any) -> None:
    engine, recorder = start()
    counts = [0, 1, 5, 20, None, 3, 0, 20, 2, 7, 1, 4]
    samplings = [GREEDY, EVERYTHING]
    requests = [
        request(i, prompt=p, max_tokens=COUNT, sampling=samplings[i % 2], logprobs=counts[i], bad_words=((40,), (9, 4)))
        for i, p in enumerate(PROMPTS)
    ]
    found = run_all(engine, recorder, requests)
    for i, prompt in enumerate(PROMPTS):
        count = counts[i]
        if count is None:
            assert all(delta.logprobs is None for delta in recorder.deltas(i))
            continue
        assert all((delta.logprobs is None) == (not delta.token_ids) for delta in recorder.deltas(i))
        rows = distribution(model, [*prompt, *found[i]])[len(prompt) - 1 : -1]
        check(recorder.logprobs(i), found[i], rows, count)


def test_prompt_logprobs(start: EngineFactory, model: Any, expected: list[list[int]]) -> None:
    engine, recorder = start()
    wanted = expected
    for i, prompt in enumerate(PROMPTS):
        engine.submit(request(200 + i, prompt=prompt, max_tokens=COUNT))
        engine.submit(request(i, prompt=prompt, max_tokens=COUNT if i % 2 else 0, prompt_logprobs=i))
    recorder.wait_end(*range(len(PROMPTS)), *range(200, 200 + len(PROMPTS)))
    for i, prompt in enumerate(PROMPTS):
        assert recorder.tokens[200 + i] == wanted[i]  # beside them as always
        assert recorder.tokens[i] == (wanted[i] if i % 2 else [])
        assert recorder.reason(i) == "length"
        check(unpacked(first(recorder, i).prompt_logprobs), prompt[1:], distribution(model, prompt)[:-1], i)
    # And afterwards.
    assert run_all(engine, recorder, [request(300, prompt=PROMPTS[7], max_tokens=COUNT)]) == [wanted[7]]


def test_embeddings(start: EngineFactory, checkpoint: Path, model: Any) -> None:
    engine, recorder = start()
    fresh = AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32").eval()
    wanted = generate(model, PROMPTS[6], count=100)
    engine.submit(request(500, prompt=PROMPTS[6], max_tokens=100))
    for i, prompt in enumerate(PROMPTS):
        engine.submit(request(i, prompt=prompt, max_tokens=0, pooling="last"))
        engine.submit(request(100 + i, prompt=prompt, max_tokens=0, pooling="mean", prompt_logprobs=1))
    recorder.wait_end(500, *range(len(PROMPTS)), *range(100, 100 + len(PROMPTS)))
    assert recorder.tokens[500] == wanted
    for i, prompt in enumerate(PROMPTS):
        with torch.no_grad():
            hidden = fresh(input_ids=torch.tensor([prompt]), output_hidden_states=True).hidden_states[-1][0]
        for key, vector in ((i, hidden[-1]), (100 + i, hidden.mean(0))):
            (delta,) = recorder.deltas(key)
            assert (delta.finish_reason, delta.token_ids) == ("stop", [])
            assert delta.embedding == pytest.approx((vector / vector.norm()).tolist(), abs=1e-4)
            assert math.hypot(*(delta.embedding or [])) == pytest.approx(1, abs=1e-5)
            assert (delta.prompt_logprobs is not None) == (key >= 100)
    assert engine.stats().waiting == 0


def test_another_attention_is_put_back(start: EngineFactory, model: Any) -> None:
    """As with attention over the paged cache, which cannot do an ordinary pass."""
    engine, recorder = start(attention="eager")
    wanted = [generate(model, prompt) for prompt in PROMPTS[:4]]
    for i, prompt in enumerate(PROMPTS[:4]):
        engine.submit(request(i, prompt=prompt, max_tokens=COUNT))
        engine.submit(request(100 + i, prompt=prompt, max_tokens=COUNT, prompt_logprobs=2))
    recorder.wait_end(*range(4), *range(100, 104))
    assert [recorder.tokens[i] for i in range(4)] == [recorder.tokens[100 + i] for i in range(4)] == wanted
    for i, prompt in enumerate(PROMPTS[:4]):
        check(unpacked(first(recorder, 100 + i).prompt_logprobs), prompt[1:], distribution(model, prompt)[:-1], 2)
    assert run_all(engine, recorder, [request(200, prompt=PROMPTS[0], max_tokens=COUNT)]) == wanted[:1]


def test_many_prompts_to_look_at_and_some_cancelled(start: EngineFactory) -> None:
    engine, recorder = start()
    ids = range(60)
    for i in ids:
        engine.submit(request(i, prompt=[i + 1] * 400, max_tokens=0, pooling="last"))
        if i % 3 == 0:
            engine.cancel(i)
    recorder.wait_end(*ids)
    assert {recorder.reason(i) for i in ids if i % 3} == {"stop"}
    assert {recorder.reason(i) for i in ids if i % 3 == 0} <= {"stop", "cancelled"}
    assert engine.stats().waiting == 0


def test_a_pass_that_fails_is_one_requests_error(start: EngineFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, recorder = start()

    def fail(*args: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(prompt_forward, "_pooled", fail)
    engine.submit(request(1, max_tokens=0, pooling="last"))
    engine.submit(request(2, max_tokens=4))
    recorder.wait_end(1, 2)
    assert recorder.reason(1) == "error"
    assert not recorder.ends[1].invalid
    assert "memory" not in (recorder.ends[1].error or "")
    assert recorder.reason(2) == "length"


@pytest.mark.parametrize("sharing", ["true", "false"])
def test_cached_tokens(start: EngineFactory, sharing: str) -> None:
    engine, recorder = start(prefix_sharing=sharing)
    prompt = PROMPTS[-1]  # 150 tokens: four pages of 32 and some
    prompts = [prompt, prompt, [*prompt[:70], 1, 2, 3], prompt[:64], [7, *prompt]]
    for i, one in enumerate(prompts):
        run_all(engine, recorder, [request(i, prompt=one, max_tokens=20)])
    found = [first(recorder, i).cached_tokens for i in range(5)]
    # transformers 5.17 computes one token of a prompt that is there as a whole, later releases the last page.
    assert found in ([[0, 128, 64, 32, 0], [0, 128, 64, 63, 0]] if sharing == "true" else [[0] * 5])
    assert all(delta.cached_tokens == 0 for i in range(5) for delta in recorder.deltas(i)[1:])


@pytest.mark.usefixtures("ways")
@pytest.mark.parametrize("pieces", ["33", "40", "96"])
def test_a_prompt_of_several_pieces_is_found_again_up_to_its_last_page(
    start: EngineFactory, model: Any, pieces: str
) -> None:
    engine, recorder = start(max_num_tokens=pieces, max_batch_size="2")
    # Whole pages of 32, a token less, a token more, and the last piece a single token.
    for n, length in enumerate([192, 191, 193, 97, 150]):
        prompt = [n + 1, *PROMPTS[-1], *PROMPTS[-2]][:length]
        found = [run_all(engine, recorder, [request(i, prompt=prompt, max_tokens=4)]) for i in (2 * n, 2 * n + 1)]
        assert found == [[generate(model, prompt, 4)]] * 2
        assert first(recorder, 2 * n).cached_tokens == 0
        assert first(recorder, 2 * n + 1).cached_tokens == (length - 1) // 32 * 32, length


@pytest.mark.skipif(
    not hasattr(FIFOScheduler, "_try_to_meet_safety_margin"),
    reason="older releases of transformers give single pages back",
)
@pytest.mark.usefixtures("ways")
def test_a_full_cache_forgets_what_is_longest_unused(start: EngineFactory) -> None:
    """Of 32 pages, 27 kept at most: eight conversations of five pages each, the first one used again and again."""
    engine, recorder = start(max_tokens_in_kv_cache=1024)
    conversations = [[n + 1, *PROMPTS[-1]] for n in range(8)]
    answers: dict[int, list[int]] = {}
    for i, n in enumerate([0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0, 7]):
        (answer,) = run_all(engine, recorder, [request(i, prompt=conversations[n], max_tokens=20)])
        assert answers.setdefault(n, answer) == answer
        assert (first(recorder, i).cached_tokens > 0) == (i > 0 and n == 0)
    for i, n in enumerate([7, 6, 0, 1, 2], 20):
        assert run_all(engine, recorder, [request(i, prompt=conversations[n], max_tokens=20)]) == [answers[n]]
        assert (first(recorder, i).cached_tokens >= 128) == (n in {7, 6, 0})


@IN_EVERY_WAY
def test_the_prefix_cache_is_reset(start: EngineFactory) -> None:
    engine, recorder = start()
    prompt = PROMPTS[-1]
    (answer,) = run_all(engine, recorder, [request(0, prompt=prompt, max_tokens=5)])
    engine.reset_prefix_cache()
    assert run_all(engine, recorder, [request(1, prompt=prompt, max_tokens=5)]) == [answer]
    assert first(recorder, 1).cached_tokens == 0
    engine.close()
    with pytest.raises(PrefixCacheError, match="unloaded"):
        engine.reset_prefix_cache()


def test_pages_of_running_sequences_stay(start: EngineFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is given back, and the caller is told of them."""
    engine, recorder = start()
    commands: Any = engine._commands  # type: ignore[attr-defined]
    put, asked = commands.put, threading.Event()

    def noted(command: Any) -> bool:
        taken: bool = put(command)
        if isinstance(command, Future):
            asked.set()
        return taken

    monkeypatch.setattr(commands, "put", noted)

    def wait(deltas: Sequence[TokenDelta]) -> None:
        """Let no step follow the first one before the reset is asked for."""
        asked.wait(PATIENCE_S)

    recorder.after = wait
    engine.submit(request(0, prompt=PROMPTS[-1], max_tokens=300))
    recorder.wait_tokens(0)
    with pytest.raises(PrefixCacheError) as caught:
        engine.reset_prefix_cache()
    assert caught.value.busy
    engine.cancel(0)


@IN_EVERY_WAY
def test_the_batch_does_not_matter(start: EngineFactory) -> None:
    """With everything at once, alone and beside others, with prefixes in the cache and without."""
    engine, recorder = start(max_tokens_in_kv_cache="1024")
    asked: dict[str, Any] = {
        "prompt": PROMPTS[6],
        "max_tokens": COUNT,
        "sampling": EVERYTHING,
        "logprobs": 3,
        "prompt_logprobs": 2,
        "min_tokens": 9,
        "stop_token_ids": tuple(range(0, VOCAB_SIZE, 40)),
        "bad_words": ((3, 4), (5,)),
    }
    (alone,) = run_all(engine, recorder, [request(1, **asked)])
    assert len(alone) >= 9
    others = [
        request(100 + i, prompt=p, max_tokens=COUNT + 9, sampling=sampling, logprobs=count)
        for i, (p, sampling, count) in enumerate(
            zip(
                PROMPTS,
                [GREEDY, EVERYTHING, SamplingParams(temperature=2.0, min_p=0.1), SamplingParams(top_k=5)] * 3,
                [None, 20, 0, None] * 3,
                strict=True,
            )
        )
    ]
    assert run_all(engine, recorder, [*others[:6], request(2, **asked), *others[6:]])[6] == alone
    one, two = recorder.logprobs(1), recorder.logprobs(2)
    assert one.token_logprobs == pytest.approx(two.token_logprobs, abs=1e-3)
    assert first(recorder, 2).prompt_logprobs is not None
