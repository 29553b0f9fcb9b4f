"""What the embedded engine generates, held against transformers' own `generate`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from openai_bls.core.engine import Engine
from openai_bls.core.engine_types import SamplingParams
from openai_bls_transformers.runners.sampler import Sampler
from tests.engine_contract.support import GREEDY, VOCAB_SIZE, Recorder, request
from tests_transformers.engine.arrivals import run_together, submit_together

if TYPE_CHECKING:
    from tests.engine_contract.fixtures import EngineFactory

COUNT = 24


def make_prompts() -> list[list[int]]:
    rng = random.Random(3)
    lengths = [1, 2, 3, 5, 8, 13, 31, 32, 33, 64, 100, 150]
    return [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in lengths]


PROMPTS = make_prompts()


@pytest.fixture(scope="session")
def model(checkpoint: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32").eval()


def generate(model: Any, prompt: Sequence[int], count: int = COUNT, **settings: Any) -> list[int]:
    """`count` greedy tokens; end tokens do not end it."""
    ids = torch.tensor([list(prompt)])
    settings = {"do_sample": False, "top_k": None, "temperature": None, "eos_token_id": None} | settings
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, **settings)
    return [int(token) for token in output[0, len(prompt) :]]


@pytest.fixture(scope="session")
def expected(model: Any) -> list[list[int]]:
    return [generate(model, prompt) for prompt in PROMPTS]


def run_all(
    engine: Engine,
    recorder: Recorder,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams = GREEDY,
    first: int = 0,
) -> list[list[int]]:
    ids = range(first, first + len(prompts))
    for i, prompt in zip(ids, prompts, strict=True):
        engine.submit(request(i, prompt=prompt, max_tokens=COUNT, sampling=sampling))
    recorder.wait_end(*ids)
    return [recorder.tokens[i] for i in ids]


def test_greedy_equals_generate_together(start: EngineFactory, expected: list[list[int]]) -> None:
    engine, recorder = start()
    for _ in range(2):  # the second time with prefixes in the cache
        assert run_all(engine, recorder, PROMPTS) == expected
        recorder.forget(range(len(PROMPTS)))


@pytest.mark.parametrize("prefix_sharing", ["true", "false"])
def test_greedy_with_prompts_in_pieces(start: EngineFactory, expected: list[list[int]], prefix_sharing: str) -> None:
    engine, recorder = start(max_num_tokens="24", prefix_sharing=prefix_sharing)
    assert run_all(engine, recorder, PROMPTS) == expected


def test_shared_prefixes(start: EngineFactory, model: Any) -> None:
    common = PROMPTS[-1]
    prompts = [[*common, i, i + 1] for i in range(6)] + [common, common[:64], common[:65]]
    wanted = [generate(model, prompt) for prompt in prompts]
    engine, recorder = start()
    run_all(engine, recorder, [common], first=100)
    assert run_all(engine, recorder, prompts) == wanted


def test_seeds_differ(start: EngineFactory) -> None:
    engine, recorder = start()
    runs = [
        tuple(run_all(engine, recorder, PROMPTS[:1], SamplingParams(seed=seed), first=10 + i)[0])
        for i, seed in enumerate([1, 2, 3, None, None, 2**64 - 1])
    ]
    assert len(set(runs)) == len(runs)


def test_a_step_is_one_call(start: EngineFactory) -> None:
    engine, recorder = start()
    run_together(engine, recorder, [request(i, prompt=PROMPTS[i], max_tokens=COUNT) for i in range(4)])
    engine.submit(request(90, max_tokens=2))
    recorder.wait_end(90)
    assert max(len(step) for step in recorder.steps) == 4
    for step in recorder.steps:
        assert len({delta.request_id for delta in step}) == len(step)


def test_death_fails_what_lives_and_what_comes(start: EngineFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, recorder = start()
    prepare = Sampler.prepare_tensor_args

    def fail(*args: Any, **kwargs: Any) -> Any:
        if len(recorder.tokens.get(0, ())) >= 3:
            raise RuntimeError("a device-side assertion")
        return prepare(*args, **kwargs)

    monkeypatch.setattr(Sampler, "prepare_tensor_args", fail)
    submit_together(engine, [request(i, max_tokens=300) for i in range(20)])  # more than a batch
    recorder.wait_end(*range(20))
    assert {recorder.reason(i) for i in range(20)} == {"error"}
    engine.submit(request(100))
    engine.submit(request(101, prompt=()))
    recorder.wait_end(100, 101)
    assert recorder.ends[100].error is not None
    assert "assertion" not in recorder.ends[100].error
    assert not recorder.ends[100].invalid
    engine.cancel(100)
    assert engine.stats().running == 0
    engine.close()
    engine.submit(request(102))
    assert recorder.reason(102) == "cancelled"


def test_info_from_the_checkpoint(start: EngineFactory) -> None:
    info = start()[0].info
    assert info.engine == "transformers"
    assert info.vocab_size == VOCAB_SIZE
    assert info.eos_token_ids == (257, 258)
    assert info.pad_token_id == 256
    assert info.sampling_defaults == SamplingParams(temperature=0.7, top_k=20)
    assert "bad_words" in info.supported


def test_the_longest_requests_take_turns_in_the_smallest_cache(start: EngineFactory, model: Any) -> None:
    engine, recorder = start(max_tokens_in_kv_cache="512")
    rng = random.Random(5)
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(440)] for _ in range(3)]
    wanted = [generate(model, prompt, count=72) for prompt in prompts]
    for i, prompt in enumerate(prompts):
        engine.submit(request(i, prompt=prompt, max_tokens=72))
    for i in range(10, 20):
        engine.submit(request(i, prompt=prompts[i % 3][: i * 10], max_tokens=60))
        engine.submit(request(i + 10, prompt=prompts[i % 3][: i * 9], max_tokens=300))
        engine.cancel(i + 10)
    recorder.wait_end(0, 1, 2, *range(10, 30))
    assert [recorder.tokens[i] for i in range(3)] == wanted
    assert {recorder.reason(i) for i in range(10, 20)} == {"length"}
